"""A Prefect server that is away or too busy for some minutes: whoever asks it something waits.

Prefect's client tries again where it has spoken to the server before, after pauses that double up
to two minutes, eight times at most; one that was made while nobody answered gives up at once. So a
run fails because of the minute in which it began, or a line of its log is lost behind a server that
answers "database is locked" eight times. With `wait_for_prefect` every client of this process tries
again every few seconds instead. `at_once` is for what a run can do without.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx
from prefect.client import base
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient

PAUSE_S = 2.0
PATIENCE_S = 900.0  # as MLflow's at the end of a run
PATIENCE_WITH_FAULTS_S = 240.0
"""For answers 500: while its Postgres is away, and to requests that it cannot digest."""
PATIENCE_AT_ONCE_S = 10.0
"""Of `at_once`, with a server that is there and busy: SQLite is locked for a moment."""
SECONDS_BETWEEN_WARNINGS = 60.0
_WORTH_A_TRY = (
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.ProtocolError,
    httpx.HTTPStatusError,
)
_BUSY, _FAULT = (408, 429, 502, 503), 500
_at_once: ContextVar[bool] = ContextVar("klear_at_once", default=False)
_send = PrefectHttpxSyncClient.send
_send_async = PrefectHttpxAsyncClient.send


class _Twice:
    """In the place of a setting: the second try is for a CSRF token that has expired."""

    def value(self) -> int:
        return 1


def wait_for_prefect() -> None:
    """For every client of this process, those that exist already too; safe to repeat."""
    PrefectHttpxSyncClient.send = _patiently  # type: ignore[method-assign]
    PrefectHttpxAsyncClient.send = _patiently_async  # type: ignore[method-assign]
    base.PREFECT_CLIENT_MAX_RETRIES = _Twice()  # type: ignore[assignment]


@contextmanager
def at_once() -> Iterator[None]:
    """Calls in the block fail at once when nobody answers, with httpx.ConnectError."""
    token = _at_once.set(True)
    try:
        yield
    finally:
        _at_once.reset(token)


def notice() -> None:
    """Somebody found it away, or too busy."""
    _Wait.noticed = True


def was_noticed() -> bool:
    """Whether it was found so since the last call."""
    noticed, _Wait.noticed = _Wait.noticed, False
    return noticed


class _Wait:
    """One request's patience."""

    warned = float("-inf")
    noticed = False

    def __init__(self) -> None:
        self._began = time.monotonic()

    def go_on(self, error: httpx.HTTPError) -> None:
        """Raise `error` unless it is worth another try."""
        patience, now = _patience(error), time.monotonic()
        if patience or isinstance(error, httpx.ConnectError):
            notice()
        if now - self._began >= patience:
            raise error
        if now - _Wait.warned >= SECONDS_BETWEEN_WARNINGS:
            _Wait.warned = now
            log = logging.getLogger("klear")
            log.warning("Prefect does not answer; the run goes on and tells it later (%s)", error)


def _patience(error: httpx.HTTPError) -> float:
    """Seconds from the first try on."""
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
    if status and status not in (*_BUSY, _FAULT):
        return 0.0  # it says no, and will again
    if _at_once.get():
        return 0.0 if isinstance(error, httpx.ConnectError) else PATIENCE_AT_ONCE_S
    return PATIENCE_WITH_FAULTS_S if status == _FAULT else PATIENCE_S


def _patiently(self: PrefectHttpxSyncClient, request: httpx.Request, **how: Any) -> httpx.Response:
    wait = _Wait()
    while True:
        self._has_connected = False  # else it is Prefect that waits for the connection
        try:
            return _send(self, request, **how)
        except _WORTH_A_TRY as error:
            wait.go_on(error)
        time.sleep(PAUSE_S)


async def _patiently_async(
    self: PrefectHttpxAsyncClient, request: httpx.Request, **how: Any
) -> httpx.Response:
    wait = _Wait()
    while True:
        self._has_connected = False
        try:
            return await _send_async(self, request, **how)
        except _WORTH_A_TRY as error:
            wait.go_on(error)
        await asyncio.sleep(PAUSE_S)
