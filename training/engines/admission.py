"""When a request may be sent: one at first, more as they are accepted, none while told to wait.

A refusal for overload holds every request of the endpoint: as long as its Retry-After says, else
twice as long after each. Then one request tries. So an endpoint that refuses hears of us at most
twice a second, and what it refuses to one (a parameter, a key) is learnt before others ask.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

SHORTEST_HOLD_S, LONGEST_HOLD_S = 0.5, 8.0  # where the endpoint does not say how long
LONGEST_WAIT_S = 3_600.0
ACCEPTED_S = 1.0  # without a word a request counts as accepted: not every server streams
MOST_UNHEARD, MOST_AFTER_REFUSAL = 16, 2  # sent, with no status yet
CALM_S = 30.0
NOTE_S = 15.0


def seconds_to_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """What Retry-After (or retry-after-ms) says, a number or a date by the reply's own; or None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        until = parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    with suppress(KeyError, ValueError):
        now = parsedate_to_datetime(headers["date"])
    until, now = (t if t.tzinfo else t.replace(tzinfo=UTC) for t in (until, now))
    return max(0.0, (until - now).total_seconds())


def hold_seconds(retry_after: float | None, refusals: int) -> float:
    """How long nothing is sent after so many refusals in a row."""
    if retry_after is not None:
        return max(retry_after, SHORTEST_HOLD_S)
    return min(SHORTEST_HOLD_S * 2 ** min(refusals - 1, 30), LONGEST_HOLD_S)


class Admission:
    """Lets requests through in the order in which they came."""

    def __init__(
        self, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self._tell, self._clock, self._sleep = tell, clock, sleep
        self._turn, self._news = asyncio.Lock(), asyncio.Event()
        self._window, self._unheard = 1.0, 0
        self._until = self._calm = -math.inf
        self._held, self._reason = 0.0, ""
        self.refusals = 0
        """In a row, since the last request that was accepted."""

    @property
    def holding(self) -> bool:
        return self._clock() < self._until

    def open_seconds(self) -> float:
        """A clock that stands still while requests are held."""
        now = self._clock()
        return now - self._held + max(0.0, self._until - now)

    async def enter(self) -> "Ticket":
        """Wait until one more may be sent."""
        async with self._turn:
            while True:
                if (left := self._until - self._clock()) > 0:
                    self._tell(f"{self._reason}: waiting {left:,.0f} s")
                    await self._sleep(min(left, NOTE_S))
                elif self._unheard >= int(self._window):
                    self._news.clear()
                    await self._news.wait()
                else:
                    self._unheard += 1
                    return Ticket(self)

    def hold(self, retry_after: float | None, reason: str) -> None:
        """A request was refused: send none for `retry_after` seconds, or as long as is usual. What
        was sent before counts as one refusal with it."""
        self.refusals += not self.holding
        now = self._clock()
        until = max(self._until, now + hold_seconds(retry_after, self.refusals))
        self._held += until - max(self._until, now)
        self._until, self._calm, self._reason, self._window = until, until + CALM_S, reason, 1.0

    def heard(self, accepted: bool) -> None:
        """One that was sent has a status, or counts as accepted."""
        self._unheard -= 1
        if accepted and not self.holding:
            calm = self._clock() > self._calm
            self._window = min(self._window + 0.5, MOST_UNHEARD if calm else MOST_AFTER_REFUSAL)
        self._news.set()


class Ticket:
    def __init__(self, admission: Admission) -> None:
        self._admission, self._open = admission, True
        self._timer = asyncio.get_running_loop().call_later(ACCEPTED_S, self.close, True)

    def accept(self) -> None:
        self._admission.refusals = 0
        self.close(accepted=True)

    def close(self, accepted: bool = False) -> None:
        """It has ended, if nothing was heard of it before."""
        if self._open:
            self._open = False
            self._timer.cancel()
            self._admission.heard(accepted)
