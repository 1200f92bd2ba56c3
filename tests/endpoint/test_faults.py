"""The endpoint engine against every fault at once: nothing lost, nothing doubled."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from configs.engines import EngineRuntime, EngineSettings, Sampling
from eval.records import Sample
from training.engines import endpoint_errors
from training.engines.endpoint import EndpointEngine
from training.engines.interface import Request

CONCURRENCY, SIZE = 32, 4_000
PATIENCE_S = 60.0
"""A machine that stalls must not make a healthy answer late."""
HANG_S = 3.0
"""Patience where some requests hang: each costs a slot for so long."""
ONE_PERCENT = ("429", "429 with Retry-After", "500", "hang", "cut stream", "truncated JSON",
               "another model answers", "404", "slow first token")  # fmt: skip
ONCE_MORE = 8
"""Kinds of fault after which a request must be asked again; a slow first token is none."""


def requests(count: int) -> Iterator[Request]:
    for i in range(count):
        yield Request(problem_id=f"p{i}", index=0, prompt=f"question {i}", seed=i)


def engine(url: str, **runtime: Any) -> EndpointEngine:
    settings = EngineSettings(
        kind="openai", model="teacher-r1", base_url=url, api_key_env="",
        runtime=EngineRuntime(
            **{"concurrency": CONCURRENCY, "silence_timeout_s": PATIENCE_S, **runtime}
        ),
    )  # fmt: skip
    return EndpointEngine(settings, Sampling())


def asked(e: EndpointEngine, count: int) -> list[Sample]:
    return list(e.answer(requests(count)))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(endpoint_errors, "FIRST_DELAY_S", 0.02)


def one_percent_of_each(prompt: str, attempt: int) -> str:
    """The first nine of every hundred questions meet one fault each, once."""
    number = int(prompt.split()[1]) % 100
    return ONE_PERCENT[number] if attempt == 0 and number < len(ONE_PERCENT) else ""


def test_with_one_percent_of_every_fault_each_of_2000_requests_is_answered_once(endpoint_of):
    with endpoint_of(one_percent_of_each, latency_s=0.02, size=SIZE) as endpoint:
        e = engine(endpoint.url, silence_timeout_s=HANG_S)
        samples = asked(e, 2_000)
        assert {s.problem_id: s.text for s in samples} == {
            r.problem_id: endpoint.right_answer(r.prompt) for r in requests(2_000)
        }
    assert len(samples) == 2_000
    assert {s.finish_reason for s in samples} == {"stop"}
    assert {f: endpoint.faults[f] for f in ONE_PERCENT} == dict.fromkeys(ONE_PERCENT, 20)
    # A stalled machine may let healthy answers time out too: each is asked once more, and counted.
    troubles = e.breaker.troubles.items()
    lost = sum(n for why, n in troubles if why.startswith(("time-out", "no connection")))
    late = lost - endpoint.faults["hang"]
    assert late >= 0
    assert ONCE_MORE * 20 <= e.retries <= ONCE_MORE * 20 + late
    assert 2_000 + ONCE_MORE * 20 <= endpoint.attempts.total() <= 2_000 + e.retries
    assert 2 <= max(endpoint.attempts.values()) <= 2 + late
    assert endpoint.most_in_flight <= CONCURRENCY


def test_a_server_with_fewer_slots_is_soon_asked_no_more_than_it_takes(endpoint_of):
    """64 of ours against 8 of theirs: without adaptation almost every request is refused often."""
    with endpoint_of(latency_s=0.05, slots=8) as endpoint:
        samples = asked(engine(endpoint.url, concurrency=64), 400)
    assert Counter(s.problem_id for s in samples) == Counter(f"p{i}" for i in range(400))
    assert endpoint.faults["429 with Retry-After"] < 400


def test_the_next_request_waits_until_the_last_answer_is_taken(endpoint_of):
    with endpoint_of(latency_s=0.0) as endpoint:
        stream = engine(endpoint.url, concurrency=2).answer(requests(50))
        for taken in range(1, 11):
            next(stream)
            time.sleep(0.05)  # time enough for many answers
            assert sum(endpoint.attempts.values()) <= taken - 1 + 2
        stream.close()


def test_an_answer_of_another_model_is_not_taken_even_if_it_comes_first(endpoint_of):
    def first_is_foreign(prompt: str, attempt: int) -> str:
        return "another model answers" if attempt == 0 else ""

    with endpoint_of(first_is_foreign) as endpoint:
        samples = asked(engine(endpoint.url, concurrency=1), 1)
    assert endpoint.attempts["question 0"] == 2
    assert len(samples) == 1


def test_connections_are_used_again_so_that_a_handshake_is_not_paid_for_every_answer(endpoint_of):
    with endpoint_of(latency_s=0.0) as endpoint:
        asked(engine(endpoint.url, concurrency=4), 100)
    assert endpoint.connections <= 2 * 4
