"""How many requests may be in flight: as many as allowed, fewer while the server is overloaded.

A refusal now and then (429, 503) concerns its own request. When more than a tenth of the latest
outcomes are refusals, the limit falls by a third and nobody knocks before the time the server
asked for; each success then gives a little of it back (additive increase, multiplicative
decrease: Chiu & Jain 1989). Lives in one event loop.
"""

import asyncio
import time
from collections import deque

WINDOW, FEWEST_OUTCOMES = 50, 20
OVERLOADED_SHARE = 0.1
DECREASE = 2 / 3


class Pace:
    """Slots for requests: `enter` waits for one, `leave` frees it."""

    def __init__(self, most: int) -> None:
        self.most, self.limit = most, float(most)
        self.in_flight = 0
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed_until = 0.0

    async def enter(self) -> None:
        """Wait for a slot, first come first served."""
        if not self._waiting and self._has_room():
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn  # whoever wakes us has counted us in
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        self._wake()

    def served(self) -> None:
        """A request was answered: there may be room for more."""
        self._recent.append(False)
        self.limit = min(float(self.most), self.limit + 1 / self.limit)
        self._wake()

    def refused(self, asked: float | None) -> None:
        """The server has too much to do; `asked`: the seconds it wants us to wait, if it said."""
        self._recent.append(True)
        if len(self._recent) < min(FEWEST_OUTCOMES, self.most):
            return
        if sum(self._recent) > OVERLOADED_SHARE * len(self._recent):
            self._recent.clear()
            self.limit = max(1.0, self.limit * DECREASE)
            if asked:
                self._closed_until = max(self._closed_until, time.monotonic() + asked)
                asyncio.get_running_loop().call_later(asked, self._wake)

    def _has_room(self) -> bool:
        return self.in_flight < int(self.limit) and time.monotonic() >= self._closed_until

    def _wake(self) -> None:
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)


class Slot:
    """One request's place among those in flight; it may be given up and taken again."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._held = pace, False

    async def take(self) -> None:
        await self._pace.enter()
        self._held = True

    def free(self) -> None:
        if self._held:
            self._held = False
            self._pace.leave()
