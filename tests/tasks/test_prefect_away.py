"""A Prefect server that is away or busy: clients wait, but those that were told not to."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from prefect.client import base
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks import prefect_away
from tasks.prefect_away import at_once, wait_for_prefect

PREFECTS_OWN_TRIES = 8


class Answer(BaseHTTPRequestHandler):
    """Empty; `first` are the statuses of the first answers, 200 that of all others."""

    first: list[int]
    posted: list[bytes]

    def do_GET(self) -> None:
        if "csrf-token" in self.path:
            self.send_response(404)  # it has no such protection
        else:
            self.send_response(self.first.pop(0) if self.first else 200)
        self.send_header("Retry-After", "0")  # the pauses are not what is tested
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted += [] if self.first else [body]
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


class Late:
    """An address at which nobody listens until `open()`."""

    def __init__(self, *first: int) -> None:
        self.first, self.posted = list(first), list[bytes]()
        answer = type("Answer", (Answer,), {"first": self.first, "posted": self.posted})
        self._server = HTTPServer(("127.0.0.1", 0), answer, bind_and_activate=False)
        self._server.server_bind()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def open(self) -> None:
        self._server.server_activate()
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in (
        (PrefectHttpxSyncClient, "send"),
        (PrefectHttpxAsyncClient, "send"),
        (base, "PREFECT_CLIENT_MAX_RETRIES"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(prefect_away, "PAUSE_S", 0.01)
    monkeypatch.setattr(prefect_away._Wait, "noticed", False)
    wait_for_prefect()


@pytest.fixture
def busy(waiting: None, request: pytest.FixtureRequest) -> Iterator[Late]:
    """A server whose first answers are the parameter's."""
    server = Late(*request.param)
    server.open()
    yield server
    server.close()


@pytest.fixture
def late(waiting: None) -> Iterator[Late]:
    server = Late()
    yield server
    server.close()


@pytest.fixture
def opens_at_the_third_try(late: Late, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every try that failed."""
    tries: list[int] = []
    go_on = prefect_away._Wait.go_on

    def count(self: prefect_away._Wait, error: httpx.ConnectError) -> None:
        tries.append(1)
        if len(tries) == 2:
            late.open()
        go_on(self, error)

    monkeypatch.setattr(prefect_away._Wait, "go_on", count)
    return tries


def test_a_client_that_never_spoke_to_the_server_waits_for_it(late, opens_at_the_third_try):
    with PrefectHttpxSyncClient() as client:
        assert client.get(late.url).status_code == 200
    assert len(opens_at_the_third_try) == 2


def test_so_does_an_asynchronous_one(late, opens_at_the_third_try):
    async def ask() -> int:
        async with PrefectHttpxAsyncClient() as client:
            return (await client.get(late.url)).status_code

    assert asyncio.run(ask()) == 200
    assert len(opens_at_the_third_try) == 2


def test_what_a_run_can_do_without_fails_at_once(late):
    with at_once(), PrefectHttpxSyncClient() as client, pytest.raises(httpx.ConnectError):
        client.get(late.url)


def test_patience_ends(late, monkeypatch):
    monkeypatch.setattr(prefect_away, "PATIENCE_S", 0.0)
    with PrefectHttpxSyncClient() as client, pytest.raises(httpx.ConnectError):
        client.get(late.url)


LOCKED_FOR_LONG = [503] * (3 * PREFECTS_OWN_TRIES)


@pytest.mark.parametrize("busy", [LOCKED_FOR_LONG, [500] * 20, [429, 502, 408] * 8], indirect=True)
def test_a_server_that_is_busy_for_longer_than_prefect_tries_is_asked_until_it_answers(busy):
    with PrefectHttpxSyncClient() as client:
        assert client.post(busy.url, json={"a": 1}).status_code == 200
    assert [json.loads(body) for body in busy.posted] == [{"a": 1}]
    assert prefect_away.was_noticed()


@pytest.mark.parametrize("busy", [LOCKED_FOR_LONG], indirect=True)
def test_a_line_of_the_log_outlasts_a_locked_database(busy):
    with temporary_settings({PREFECT_API_URL: busy.url}):
        worker = APILogWorker.instance()
        worker.send({"message": "a line"})
        worker.drain()
    assert [json.loads(body) for body in busy.posted] == [[{"message": "a line"}]]


@pytest.mark.parametrize("busy", [[422] * 5, [404] * 5, [401] * 5], indirect=True)
def test_a_refusal_is_not_asked_again(busy):
    with PrefectHttpxSyncClient() as client, pytest.raises(httpx.HTTPStatusError):
        client.post(busy.url, json={})
    assert len(busy.first) == 4
    assert not prefect_away.was_noticed(), "a server that says no is there"


@pytest.mark.parametrize("busy", [LOCKED_FOR_LONG], indirect=True)
def test_what_a_run_can_do_without_waits_some_seconds_for_a_locked_database(busy, monkeypatch):
    with at_once(), PrefectHttpxSyncClient() as client:
        assert client.post(busy.url, json={}).status_code == 200
    monkeypatch.setattr(prefect_away, "PATIENCE_AT_ONCE_S", 0.0)
    busy.first += [503, 503]
    with (
        at_once(),
        PrefectHttpxSyncClient() as client,
        pytest.raises(httpx.HTTPStatusError, match="503"),
    ):
        client.post(busy.url, json={})
