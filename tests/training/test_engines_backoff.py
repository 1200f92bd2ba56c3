"""The endpoint engine before and between requests: its key, and how long it waits."""

import time

import pytest

from configs.engines import EngineSettings, Sampling
from training.engines import endpoint_errors
from training.engines.endpoint_errors import backoff, retry_after
from training.engines.interface import EngineError
from training.engines.make import make_engine


def test_waits_double_up_to_a_minute_with_jitter(monkeypatch):
    monkeypatch.setattr(endpoint_errors, "FIRST_DELAY_S", 0.5)
    assert [backoff(n, None, jitter=0.5) for n in (0, 1, 2, 20)] == [0.5, 1.0, 2.0, 60.0]
    assert backoff(3, None, jitter=0.0) == 2.0
    assert backoff(3, None, jitter=1.0) == 6.0
    assert backoff(9, asked=7.0) == 7.0
    assert backoff(0, asked=1e9) == endpoint_errors.LONGEST_ASKED_DELAY_S


def test_retry_after_is_seconds_or_a_date():
    from email.utils import formatdate

    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({}) is None
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": formatdate(time.time() - 60, usegmt=True)}) == 0
    wait = retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert wait
    assert 28 <= wait <= 30


def test_a_missing_key_is_one_line_that_names_the_variable(monkeypatch):
    monkeypatch.delenv("TEST_KEY", raising=False)
    settings = EngineSettings(
        kind="openai", model="m", base_url="http://127.0.0.1:1/v1", api_key_env="TEST_KEY"
    )
    with pytest.raises(EngineError, match="set the environment variable TEST_KEY") as caught:
        make_engine(settings, Sampling())
    assert "\n" not in str(caught.value)
