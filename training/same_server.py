"""That a rollout comes from the very vLLM server that was given the policy.

TRL's client asks again for about a minute when its server does not answer. One that is started
again meanwhile answers with the weights that it was started with, as if nothing had happened. Here
that ends the stage, which goes on from its last checkpoint and hands over the policy anew.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests


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
        except requests.RequestException as error:
            raise ServerLost(
                f"the vLLM server at {client.base_url} does not answer any more ({error}); start "
                "it again and run again: training goes on from its last checkpoint"
            ) from error

    def _look(self, client: Any) -> None:
        try:
            found = client.get_server_info()["instance_id"]  # drawn anew at every start
        except KeyError as error:
            raise ValueError(f"the vLLM server at {client.base_url} does not say who it is: take "
                             "the version in requirements-gpu.lock") from error  # fmt: skip
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
