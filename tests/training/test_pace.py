"""Slots for requests: bounded, fair, fewer under refusals and more after successes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from training.engines.endpoint_reply import BrokenReply
from training.engines.pace import Pace, Slot
from training.engines.served_names import ServedNames


def in_a_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 10))


def test_at_most_as_many_as_allowed_are_in_flight_and_they_enter_in_turn():
    async def body() -> None:
        pace, order, most = Pace(3), [], 0

        async def one(number: int) -> None:
            nonlocal most
            await pace.enter()
            order.append(number)
            most = max(most, pace.in_flight)
            await asyncio.sleep(0.001)
            pace.leave()

        await asyncio.gather(*(one(i) for i in range(20)))
        assert (most, order, pace.in_flight) == (3, list(range(20)), 0)

    in_a_loop(body)


def test_one_refusal_in_a_hundred_changes_nothing_and_a_flood_closes_slots_again_and_again():
    async def body() -> None:
        pace = Pace(64)
        for _ in range(10):
            for _ in range(99):
                pace.served()
            pace.refused(None)
        assert pace.limit == 64
        for _ in range(20 * 5):
            pace.refused(None)
        assert pace.limit < 64 * (2 / 3) ** 4
        limit = pace.limit
        for _ in range(int(limit)):
            pace.served()
        assert limit + 0.9 < pace.limit <= limit + 1.1  # one more slot after a round of successes

    in_a_loop(body)


def test_in_a_flood_nobody_knocks_before_the_time_that_the_server_asked_for():
    async def body() -> None:
        pace, loop = Pace(4), asyncio.get_running_loop()
        for _ in range(20):
            pace.refused(0.2)
        began = loop.time()
        await pace.enter()
        assert 0.19 <= loop.time() - began < 2

    in_a_loop(body)


def test_a_waiter_that_gives_up_takes_no_slot_with_it():
    async def body() -> None:
        pace = Pace(1)
        slot, other = Slot(pace), Slot(pace)
        await slot.take()
        waiting = asyncio.create_task(other.take())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        slot.free()
        slot.free()  # a second time is nothing
        assert pace.in_flight == 0
        await pace.enter()

    in_a_loop(body)


@pytest.mark.parametrize("name", ["r1", "org/r1", "R1", "r1-2025-01-20", "deepseek-r1"])
def test_longer_and_shorter_forms_of_the_asked_name_count_at_once(name):
    names = ServedNames("deepseek-ai/deepseek-r1" if name == "deepseek-r1" else "r1")
    names.check(name)
    with pytest.raises(BrokenReply, match="answered by another model"):
        names.check("llama")


def test_an_alias_counts_from_its_second_reply_and_then_alone():
    names = ServedNames("r1")
    with pytest.raises(BrokenReply):
        names.check("reasoner")
    names.check("reasoner")
    names.check("reasoner")
    for _ in range(3):
        with pytest.raises(BrokenReply, match="llama"):
            names.check("llama")


def test_a_reply_without_a_name_is_taken():
    ServedNames("r1").check("")
