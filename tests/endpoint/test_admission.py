"""When requests may be sent, on a clock of the test's own."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from klear.training.engines import admission
from klear.training.engines.admission import Admission, hold_seconds, seconds_to_wait

NOW = datetime(2026, 11, 28, 22, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "180"}, 180.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Sat, 28 Nov 2026 23:00:00 GMT"}, 3600.0),
        ({"retry-after": "Sat, 28 Nov 2026 21:00:00 GMT"}, 0.0),
        # the server's clock is an hour behind ours: its own Date counts
        ({"retry-after": "Sat, 28 Nov 2026 21:02:00 GMT", "date": "Sat, 28 Nov 2026 21:00:00 GMT"},
         120.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(headers, seconds):
    assert seconds_to_wait(headers, NOW) == seconds


def test_without_a_word_of_the_endpoint_a_hold_doubles_to_eight_seconds_and_is_never_too_short():
    assert [hold_seconds(None, n) for n in (1, 2, 3, 4, 5, 6, 99)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert hold_seconds(0.0, 3) == 0.5
    assert hold_seconds(3600.0, 3) == 3600.0


class Clock:
    """Seconds that pass when somebody sleeps, and not otherwise."""

    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def with_gate(test: Callable[[Admission, Clock, list[str]], Awaitable[None]]) -> None:
    clock, notes = Clock(), list[str]()

    async def run() -> None:
        await test(Admission(notes.append, lambda: clock.now, clock.sleep), clock, notes)

    asyncio.run(run())


def test_an_hour_of_waiting_holds_all_and_then_one_tries(monkeypatch):
    """Sixteen want to be sent; the first is told to wait an hour, and twice more three minutes."""

    async def test(gate: Admission, clock: Clock, notes: list[str]) -> None:
        waits, refused, accepted = [3600.0, 180.0, 180.0], list[float](), list[float]()

        async def ask() -> None:
            while True:
                ticket = await gate.enter()
                await asyncio.sleep(0)
                if waits:
                    refused.append(clock.now)
                    gate.hold(waits.pop(0), "HTTP 429")
                    ticket.close()
                else:
                    accepted.append(clock.now)
                    ticket.accept()
                    return

        await asyncio.gather(*(ask() for _ in range(16)))
        assert refused == [0.0, 3600.0, 3780.0]
        assert (len(accepted), min(accepted)) == (16, 3960.0)
        assert gate.open_seconds() == pytest.approx(clock.now - 3960.0)
        assert "HTTP 429: waiting 3,600 s" in notes
        assert len(notes) >= 3960 / admission.NOTE_S  # the watchdog sees that it waits

    with_gate(test)


def test_an_endpoint_that_goes_on_refusing_hears_of_us_twice_a_second_at_most():
    async def test(gate: Admission, clock: Clock, _: list[str]) -> None:
        refused = list[float]()

        async def ask() -> None:
            while clock.now < 60:
                ticket = await gate.enter()
                refused.append(clock.now)
                gate.hold(0.0, "HTTP 429")
                ticket.close()

        await asyncio.gather(*(ask() for _ in range(64)))
        assert 60 <= len(refused) <= 2 * 60 + 64
        per_second = [sum(s <= t < s + 1 for t in refused) for s in range(60)]
        assert max(per_second) <= 2

    with_gate(test)


def test_more_are_sent_at_once_as_they_are_accepted_and_two_after_a_refusal():
    async def test(gate: Admission, clock: Clock, _: list[str]) -> None:
        async def sent_at_once() -> int:
            waiting = [asyncio.create_task(gate.enter()) for _ in range(40)]
            for _ in range(200):  # as often as it takes until nothing moves
                await asyncio.sleep(0)
            entered = [task for task in waiting if task.done()]
            for task in waiting:
                task.cancel()
            for task in entered:
                task.result().accept()
            await asyncio.gather(*waiting, return_exceptions=True)
            return len(entered)

        sizes = [await sent_at_once() for _ in range(12)]
        assert sizes[0] == 1
        assert sizes == sorted(sizes)
        assert sizes[-1] == admission.MOST_UNHEARD
        gate.hold(None, "HTTP 429")
        assert [await sent_at_once() for _ in range(4)] == [1, 1, 2, 2]
        assert clock.now == admission.SHORTEST_HOLD_S

    with_gate(test)
