"""Endpoints that are not there, die, or speak another dialect: one line, and all answers kept."""

import pytest

from configs.engines import EngineRuntime, EngineSettings, Sampling
from training.engines import breaker, endpoint_errors
from training.engines.endpoint import EndpointEngine
from training.engines.endpoint_models import served_models
from training.engines.interface import EngineError, Request

KEY = "sk-very-secret-0123456789"


def engine(url: str, **runtime: object) -> EndpointEngine:
    settings = EngineSettings(
        kind="openai", model="teacher-r1", base_url=url, api_key_env="",
        runtime=EngineRuntime(**{"concurrency": 4, "max_retries": 2, **runtime}),  # type: ignore[arg-type]
    )  # fmt: skip
    return EndpointEngine(settings, Sampling(), KEY)


def requests(count: int) -> list[Request]:
    return [Request(problem_id=f"p{i}", index=0, prompt=f"question {i}") for i in range(count)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(endpoint_errors, "FIRST_DELAY_S", 0.02)


def test_an_endpoint_that_never_took_a_connection_is_named_soon(monkeypatch):
    monkeypatch.setattr(breaker, "FIRST_CONTACT_S", 0.3)
    with pytest.raises(EngineError) as caught:
        list(engine("http://127.0.0.1:9/v1", max_retries=50).answer(requests(100)))
    line = str(caught.value)
    assert line.startswith("http://127.0.0.1:9/v1: no connection (")
    assert "is the server up, and is base_url right?" in line
    assert "\n" not in line
    assert KEY not in line


def test_an_endpoint_that_dies_ends_the_stage_with_a_summary_and_the_answers_stay(endpoint_of):
    kept = []
    with pytest.raises(EngineError) as caught, endpoint_of(latency_s=0.01) as endpoint:  # noqa: PT012
        endpoint.choose = lambda p, n: "" if endpoint.answers.total() < 20 else "500"
        e = engine(endpoint.url, failures_in_a_row=6)
        for sample in e.answer(requests(500)):
            kept.append(sample)
    assert 20 <= len(kept) < 40
    assert "6 requests in a row failed, the last with HTTP 500" in str(caught.value)
    assert f"{len(kept)} answered; tried again: " in str(caught.value)
    assert "x HTTP 500" in str(caught.value)
    assert endpoint.attempts.total() < 100


def test_a_server_that_knows_no_stream_options_is_asked_without_them(endpoint_of):
    with endpoint_of(lambda _, n: "no stream_options" if n == 0 else "") as endpoint:
        (sample,) = engine(endpoint.url, concurrency=1).answer(requests(1))
    first, second = endpoint.bodies
    assert "stream_options" in first
    assert "stream_options" not in second
    assert sample.finish_reason == "stop"


def test_without_streaming_the_same_faults_are_survived(endpoint_of):
    faults = ("cut stream", "truncated JSON", "500", "another model answers", "slow first token")

    def choose(prompt: str, attempt: int) -> str:
        return faults[int(prompt.split()[1]) % 5] if attempt == 0 else ""

    with endpoint_of(choose) as endpoint:
        found = {s.problem_id: s.text for s in engine(endpoint.url, stream=False).answer(
            requests(20))}  # fmt: skip
        assert found == {r.problem_id: endpoint.right_answer(r.prompt) for r in requests(20)}
    assert not any(b["stream"] for b in endpoint.bodies)


def test_what_an_endpoint_serves_or_why_it_does_not_say(endpoint_of):
    with endpoint_of() as endpoint:
        assert served_models(endpoint.url, KEY) == ["teacher-r1"]
    with pytest.raises(EngineError, match="does not say which models it serves") as caught:
        served_models(endpoint.url, KEY)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_option_that_is_off_is_not_sent(endpoint_of):
    with endpoint_of() as endpoint:
        list(engine(endpoint.url).answer(requests(1)))
    assert not {"top_k", "repetition_penalty"} & set(endpoint.bodies[0])
