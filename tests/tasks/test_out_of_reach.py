"""Which errors of the tracking server are worth saying it again, and how often."""

import http.server
import threading
from collections.abc import Iterator

import pytest
import requests
from mlflow.exceptions import MlflowException

from tasks.out_of_reach import has_stumbled, is_away, may_pass
from tasks.tracking import Mlflow


class Sick(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status that its server has, in words and not in JSON."""

    def do_GET(self) -> None:
        text = b"Internal trouble"
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.HTTPServer]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = http.server.HTTPServer(("127.0.0.1", 0), Sick)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "away", "stumbled"),
    [(500, False, True), (502, True, False), (503, True, False), (504, True, False),
     (400, False, False), (501, False, False), (505, False, False)],
)  # fmt: skip
def test_a_status_says_whether_the_server_is_away_stumbles_or_refuses(
    sick: http.server.HTTPServer, status: int, away: bool, stumbled: bool
):
    sick.status = status  # type: ignore[attr-defined]
    with pytest.raises(MlflowException) as caught:
        Mlflow(f"http://127.0.0.1:{sick.server_port}").is_finished("a" * 32)
    assert (is_away(caught.value), has_stumbled(caught.value)) == (away, stumbled)
    words = MlflowException(f"API request to endpoint /x failed with error code {status} != 200.")
    assert (is_away(words), has_stumbled(words)) == (away, stumbled)


@pytest.mark.parametrize("ask", ["is_there", "experiment_of", "tags_of", "artifact_of"])
def test_a_run_is_not_taken_for_missing_because_the_server_failed(
    sick: http.server.HTTPServer, ask: str
):
    sick.status = 500  # type: ignore[attr-defined]
    with pytest.raises(MlflowException):
        getattr(Mlflow(f"http://127.0.0.1:{sick.server_port}"), ask)("a" * 32)


def test_a_connection_that_broke_is_found_below_what_mlflow_made_of_it():
    error = MlflowException("API request failed")
    error.__context__ = requests.exceptions.ConnectionError("refused")
    assert is_away(error)
    assert may_pass(error)


def test_a_refusal_will_not_pass():
    assert not may_pass(MlflowException("Changing param values is not allowed"))
