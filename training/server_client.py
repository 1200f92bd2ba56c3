"""TRL's client of a vLLM server, with the token where the server is the stage's own.

TRL's client sends no credentials and has no way to be given some before it asks its first
questions, which are whether the server is well and what it serves.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from requests import PreparedRequest, RequestException
from requests.auth import AuthBase
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient

from training.own_vllm import ASK_S, URL
from training.server_token import TOKEN, header


class PolicyClient(VLLMClient):
    """`VLLMClient`, which shows the token to the server that it belongs to and to no other."""

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """Wait for the server. A stage's own has answered already, before the trainer began.

        Raises ConnectionError, PermissionError where the own server has another token.
        """
        token = os.environ.get(TOKEN, "")
        if not token or self.base_url != os.environ.get(URL):
            super().check_server(total_timeout, retry_interval)
            return
        self.session.auth = _Bearer(token)
        try:
            status = self.session.get(f"{self.base_url}/health", timeout=ASK_S).status_code
        except RequestException as error:
            raise ConnectionError(
                f"the stage's vLLM server at {self.base_url} does not answer ({error})"
            ) from error
        if status != 200:
            raise PermissionError(
                f"the stage's vLLM server at {self.base_url} answers {status} to its own trainer: "
                "another program has its port; run again"
            )


class _Bearer(AuthBase):
    """As `auth` of a session it wins over ~/.netrc, which a mere header does not, and `requests`
    takes it off when a server sends it elsewhere."""

    def __init__(self, token: str) -> None:
        self._header = header(token)

    def __call__(self, r: PreparedRequest) -> PreparedRequest:
        r.headers.update(self._header)
        return r


@contextmanager
def in_trl() -> Iterator[None]:
    """Inside of the block TRL's trainers take this client: they make theirs themselves."""
    trl: Any = vllm_generation
    theirs = trl.VLLMClient
    trl.VLLMClient = PolicyClient
    try:
        yield
    finally:
        trl.VLLMClient = theirs
