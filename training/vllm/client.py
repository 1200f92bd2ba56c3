"""TRL's client of a vLLM server: with the token of the stage's own, and sure that it is still the
very server that was given the policy.

TRL's client sends no credentials and has no way to be given some before it asks its first
questions, which are whether the server is well and what it serves. It asks again for about a
minute when its server does not answer. One that is started again meanwhile answers with the
weights that it was started with, as if nothing had happened. Here that ends the stage, which goes
on from its last checkpoint and hands over the policy anew.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from requests import PreparedRequest, RequestException
from requests.auth import AuthBase
from trl.generation.vllm_client import VLLMClient

from training.vllm.server import TOKEN, URL, header

ASK_S = 5.0


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


class ServerLost(RuntimeError):
    """The server is gone, or has been started again; training can go on from its checkpoint."""


class SameServer:
    """Knows the start of the server behind a TRL client from all other starts."""

    def __init__(self) -> None:
        self._known = ""

    @contextmanager
    def during(self, client: Any) -> Iterator[None]:
        """Hand over the policy and sample inside of the block.

        Raises ServerLost when the server gives no answer, or when it is not the one of the first
        call, before or after the block.
        """
        try:
            self._look(client)
            yield
            self._look(client)
        except RequestException as error:
            raise ServerLost(
                f"the vLLM server at {client.base_url} does not answer any more ({error}); start "
                "it again and run again: training goes on from its last checkpoint"
            ) from error

    def _look(self, client: Any) -> None:
        found = client.get_server_info()["instance_id"]  # drawn anew at every start
        if self._known and found != self._known:
            raise ServerLost(
                f"the vLLM server at {client.base_url} was started again and has lost the policy; "
                "run again: training goes on from its last checkpoint"
            )
        self._known = found


def client_of(trainer: Any) -> Any:
    """The client of a trainer whose sampler is a server, in the one process that has it."""
    generation = getattr(trainer, "vllm_generation", None)
    return getattr(generation, "vllm_client", None)
