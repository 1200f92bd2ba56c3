"""Messages arrive in order, once each, whatever the server does meanwhile."""

import http.server
import logging
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import requests
from mlflow.exceptions import MlflowException

from tasks.tracking import log_queue
from tasks.tracking.log_queue import LogQueue, is_unreachable
from tasks.tracking.mlflow_client import Mlflow

AWAY = requests.exceptions.ConnectionError("refused")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_queue, "PAUSE_S", 0.01)


def test_messages_arrive_in_order_also_those_put_while_the_server_is_unreachable():
    heard: list[int] = []
    back = threading.Event()

    def hear(i: int) -> None:
        if i >= 3 and not back.is_set():
            raise AWAY
        heard.append(i)

    queue = LogQueue()
    for i in range(100):
        queue.put("number", lambda i=i: hear(i))
    assert not queue.flush(0.1)
    back.set()
    assert queue.flush(60)
    assert heard == list(range(100))
    assert queue.refused == 0


def test_a_refused_message_is_a_warning_and_holds_up_no_other(caplog):
    heard: list[str] = []
    queue = LogQueue()
    with caplog.at_level(logging.WARNING, "klear"):
        queue.put("the note", Mock(side_effect=ValueError("no such column")))
        queue.put("next", lambda: heard.append("next"))
        assert queue.flush(60)
    assert heard == ["next"]
    assert queue.refused == 1
    assert "refused the note: no such column" in caplog.text


def test_a_message_that_cannot_wait_overtakes_all_but_the_one_being_sent():
    heard: list[str] = []
    hold, started = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        hold.wait(60)
        heard.append("first")

    queue = LogQueue()
    queue.put("first", slow)
    assert started.wait(60)
    queue.put("second", lambda: heard.append("second"))
    queue.put("urgent", lambda: heard.append("urgent"), soon=True)
    hold.set()
    assert queue.flush(60)
    assert heard == ["first", "urgent", "second"]


def test_a_queue_that_has_sent_all_leaves_no_thread_and_can_be_used_again():
    queue, heard = LogQueue(), Mock()
    hold = threading.Event()
    for round_ in range(2):
        hold.clear()
        queue.put("pause", lambda: hold.wait(60))
        thread = queue._thread
        assert thread is not None
        queue.put("last", lambda round_=round_: heard(round_))
        hold.set()
        assert queue.flush(60)
        thread.join(60)
        assert not thread.is_alive()
    assert [call.args for call in heard.call_args_list] == [(0,), (1,)]


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


@pytest.mark.parametrize("ask", ["run", "artifact_of"])
@pytest.mark.parametrize(
    ("status", "unreachable"),
    [(500, False), (502, True), (503, True), (504, True), (501, False), (505, False)],
)
def test_a_server_that_failed_is_unreachable_or_refuses_and_its_runs_are_not_taken_for_missing(
    sick: http.server.HTTPServer, status: int, unreachable: bool, ask: str
):
    sick.status = status  # type: ignore[attr-defined]
    with pytest.raises(MlflowException) as caught:
        getattr(Mlflow(f"http://127.0.0.1:{sick.server_port}"), ask)("a" * 32)
    assert is_unreachable(caught.value) == unreachable


@pytest.mark.parametrize(
    "cause", [AWAY, requests.exceptions.ChunkedEncodingError("2 more expected")]
)
def test_a_connection_that_broke_is_found_below_what_mlflow_made_of_it(cause: Exception):
    error = MlflowException("API request failed")
    error.__context__ = cause
    assert is_unreachable(error)
