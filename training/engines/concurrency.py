"""How many requests an endpoint is asked at once: as many as it sustains, found as TCP finds how
much a network carries (slow start, then small steps; RFC 5681).

Each round of `ROUND_S` seconds asks more: twice as many at first, later an eighth. More that was
refused, or brought too few tokens a second, is taken back; refusals of what was sustained halve it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST = 16
ROUND_S = 15.0
STEP = 8
WORTH = 0.25  # of the tokens/s that more requests would bring if each were as fast as before
REFUSED = 0.05
"""Share of the requests that may be refused in a round: they try again, which costs nothing."""


@dataclass(frozen=True)
class Level:
    """How many to ask, and what the rounds before have shown."""

    limit: int  # Requests in flight, of the round to come
    kept: int = 0  # The last limit that was sustained; 0: none was measured
    speed: float = 0.0  # Tokens a second at `kept`
    settled: bool = False  # Whether more were refused or in vain once: from then on steps are small


@dataclass(frozen=True)
class Round:
    """What was seen: tokens a second, requests sent, and those of them that were refused."""

    speed: float
    sent: int = 0
    refused: int = 0


def next_limit(level: Level, seen: Round, most: int) -> Level:
    """What to ask after a round of `level.limit` requests in flight, at most `most`."""
    limit, kept = level.limit, level.kept
    if seen.refused > REFUSED * max(seen.sent, limit):
        return Level(kept if 0 < kept < limit else max(1, limit // 2), settled=True)
    if kept and seen.speed < level.speed * (1 + WORTH * (limit / kept - 1)) and limit > kept:
        return Level(kept, kept, level.speed, settled=True)
    more = limit + max(1, limit // STEP) if level.settled else 2 * limit
    return Level(min(more, most), limit, seen.speed, level.settled)


class AdaptiveConcurrency:
    """The limit, moved by what its engine counts into `tokens`, `sent` and `refused`."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.level, self._most, self._clock = Level(min(FIRST, most)), most, clock
        self.refusals = 0
        self._begin()

    def _begin(self) -> None:
        self.tokens = self.sent = self.refused = 0
        self._began = self._clock()

    def limit(self, asking: int) -> int:
        """How many may be in flight, while `asking` are. A round counts only when it was full."""
        seconds = self._clock() - self._began
        if seconds >= ROUND_S:
            if self.level.limit - 1 <= asking <= self.level.limit:
                seen = Round(self.tokens / seconds, self.sent, self.refused)
                self.level = next_limit(self.level, seen, self._most)
            self.refusals += self.refused
            self._begin()
        return self.level.limit

    @property
    def sustained(self) -> int:
        """Requests in flight that the endpoint sustains; 0: it might more than were asked."""
        return (self.level.kept or self.level.limit) if self.level.settled else 0
