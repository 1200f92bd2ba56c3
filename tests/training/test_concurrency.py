"""How many requests an endpoint is asked at once: what it sustains is found, whatever binds it."""

from collections.abc import Callable

import pytest

from klear.training.engines import concurrency
from klear.training.engines.concurrency import FIRST, AdaptiveConcurrency, Level, Round, next_limit

EACH = 20.0  # tokens a second of a request
START = Level(FIRST)
Endpoint = Callable[[int], Round]


def refusing(most: int) -> Endpoint:
    """Answers `most` at once; the others try again twice a round."""
    return lambda limit: Round(EACH * min(limit, most), refused=2 * max(0, limit - most))


def slowing(most: int) -> Endpoint:
    """Refuses none, and is no faster with more than `most`."""
    return lambda limit: Round(EACH * min(limit, most))


def after(rounds: int, endpoint: Endpoint, start: Level = START, most: int = 1024) -> list[Level]:
    levels = [start]
    for _ in range(rounds):
        levels.append(next_limit(levels[-1], endpoint(levels[-1].limit), most))
    return levels


@pytest.mark.parametrize("endpoint", [refusing(500), slowing(500)])
def test_what_the_endpoint_sustains_is_found_within_minutes_and_kept(endpoint):
    """Six doublings lead from 16 to 1,024; an eighth more or less than the truth is accepted."""
    limits = [level.limit for level in after(60, endpoint)[8:]]
    assert min(limits) >= 500 / 1.125
    assert max(limits) <= 512 * 1.125


def test_an_endpoint_that_begins_to_refuse_is_asked_half_and_then_step_by_step_more():
    settled = after(20, refusing(500))[-1]
    less = next_limit(settled, refusing(50)(settled.kept), 1024)
    while less.limit > 50:
        less = next_limit(less, refusing(50)(less.limit), 1024)
    assert less.settled
    assert 25 <= after(5, refusing(50), less)[-1].limit <= 64


def test_single_refusals_among_many_requests_change_nothing():
    seen = Round(EACH * 64, sent=1000, refused=50)
    assert next_limit(Level(64), seen, 1024).limit == 128
    assert next_limit(Level(64, kept=64), Round(0.0, sent=1000, refused=51), 1024).limit == 32


def test_a_round_counts_only_when_it_was_full(monkeypatch):
    """At the end of a stage fewer requests are left than may be asked, after a fall more."""
    now = 0.0
    flow = AdaptiveConcurrency(1024, clock=lambda: now)
    for asking, expected in ((FIRST, 32), (20, 32), (40, 32), (31, 64)):
        now += concurrency.ROUND_S
        flow.tokens = 10_000 * asking
        assert flow.limit(asking) == expected
    assert flow.sustained == 0  # it may sustain more
    flow.refused = 100
    now += concurrency.ROUND_S
    assert (flow.limit(64), flow.sustained, flow.refusals) == (32, 32, 100)
