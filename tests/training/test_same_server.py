"""A vLLM server that was started again has lost the policy: no rollout of it is trained on."""

import pytest
import requests

from training.same_server import SameServer, ServerLost, client_of


class Client:
    """TRL's client of a server; `starts` are what it says of itself, one a question."""

    base_url = "http://127.0.0.1:8000"

    def __init__(self, *starts: str | Exception) -> None:
        self.starts = list(starts)

    def get_server_info(self) -> dict[str, str]:
        found = self.starts.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"instance_id": found}


def rollouts(client: Client, count: int, broken: Exception | None = None) -> int:
    """How many were sampled and may be trained on."""
    server, done = SameServer(), 0
    for _ in range(count):
        with server.during(client):
            if broken:
                raise broken
        done += 1
    return done


def test_one_server_serves_every_rollout():
    assert rollouts(Client("a", "a", "a", "a"), 2) == 2


@pytest.mark.parametrize("starts", [("a", "b"), ("a", "a", "b")])
def test_a_server_that_was_started_again_ends_the_stage(starts):
    with pytest.raises(ServerLost, match="was started again and has lost the policy; run again"):
        rollouts(Client(*starts), 2)


@pytest.mark.parametrize(
    "error", [requests.ConnectionError("refused"), requests.exceptions.RetryError("HTTP 500")]
)
def test_a_server_that_is_gone_is_named_with_what_to_do(error):
    for client, broken in ((Client(error), None), (Client("a"), error)):
        with pytest.raises(ServerLost) as lost:
            rollouts(client, 1, broken)
        assert "http://127.0.0.1:8000 does not answer any more" in str(lost.value)
        assert "start it again and run again" in str(lost.value)


def test_what_goes_wrong_for_another_reason_stays_what_it_is():
    with pytest.raises(ValueError, match="no prompts"):
        rollouts(Client("a"), 1, ValueError("no prompts"))


def test_a_trainer_without_a_server_has_no_client():
    assert client_of(object()) is None
