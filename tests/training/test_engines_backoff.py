"""How long the endpoint engine waits before it asks again."""

import time

from training.engines import endpoint
from training.engines.endpoint import backoff, retry_after


def test_waits_double_up_to_a_minute_with_jitter(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_DELAY_S", 0.5)
    assert [backoff(n, None, jitter=0.5) for n in (0, 1, 2, 20)] == [0.5, 1.0, 2.0, 60.0]
    assert backoff(3, None, jitter=0.0) == 2.0
    assert backoff(3, None, jitter=1.0) == 6.0
    assert backoff(9, asked=7.0) == 7.0
    assert backoff(0, asked=1e9) == endpoint.LONGEST_ASKED_DELAY_S


def test_retry_after_is_seconds_or_a_date():
    from email.utils import formatdate

    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({}) is None
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": formatdate(time.time() - 60, usegmt=True)}) == 0
    wait = retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert wait
    assert 28 <= wait <= 30
