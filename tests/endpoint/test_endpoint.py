"""The endpoint engine against every fault: nothing lost, nothing doubled, or one line."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from processes import eventually

from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.eval.records import Problem, Sample
from klear.eval.records.tables import read_table, write_table
from klear.training.engines import concurrency
from klear.training.engines import endpoint as module
from klear.training.engines.endpoint import EndpointEngine
from klear.training.engines.interface import EngineError, Request
from klear.training.engines.reply import Reply
from tests.endpoint.conftest import FAULTS, chat, error, one_percent_of_each, serving

KEY, CONCURRENCY, HANG_S, REQUESTS = "sk-very-secret-0123456789", 32, 3.0, 300
ONCE_MORE = len(FAULTS) - 1
"""Kinds of fault after which a request must be asked again; a slow first token is none."""


pytestmark = pytest.mark.usefixtures("quick")


def engine(url: str, think_prefill: str = "", **runtime: Any) -> EndpointEngine:
    settings = EngineSettings(
        kind="openai", model="teacher-r1", base_url=url, think_prefill=think_prefill,
        runtime=EngineRuntime(**{"concurrency": 4, "max_retries": 3, **runtime}),
    )  # fmt: skip
    return EndpointEngine(settings, Sampling(temperature=0.7, top_p=0.9, max_tokens=99), KEY)


def requests(count: int) -> Iterator[Request]:
    for i in range(count):
        yield Request(problem_id=f"p{i}", index=0, prompt=f"question {i}", seed=i)


def asked(engine: EndpointEngine, count: int) -> list[Sample]:
    return list(engine.answer(requests(count)))


def test_a_request_carries_the_protocol_the_seed_and_the_key_and_no_option_that_is_off():
    with serving(lambda *_: chat()) as endpoint:
        (sample,) = engine(endpoint.url).answer(requests(2), {("p1", 0)})  # p1 is finished
    (body,) = endpoint.bodies
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.9, 99)
    assert (body["model"], body["seed"], body["key"]) == ("teacher-r1", 0, f"Bearer {KEY}")
    assert not {"top_k", "repetition_penalty"} & set(body)
    assert (sample.text, sample.prompt_tokens, sample.completion_tokens) == ("42", 5, 7)


def test_with_one_percent_of_every_fault_each_request_is_answered_once():
    with serving(one_percent_of_each, size=4_000) as endpoint:
        e = engine(endpoint.url, concurrency=CONCURRENCY, silence_timeout_s=HANG_S)
        samples = asked(e, REQUESTS)
    right = {r.problem_id: endpoint.right_answer(r.prompt) for r in requests(REQUESTS)}
    assert {s.problem_id: s.text for s in samples} == right
    assert len(samples) == REQUESTS
    assert {s.finish_reason for s in samples} == {"stop"}
    assert {f: endpoint.faults[f] for f in FAULTS} == dict.fromkeys(FAULTS, REQUESTS // 100)
    # a machine that stalls may let a healthy answer time out too, and be asked once more
    assert endpoint.attempts.total() >= REQUESTS + ONCE_MORE * REQUESTS // 100
    assert endpoint.most_in_flight <= CONCURRENCY
    # no handshake for every answer: only what was cut or timed out costs its connection
    assert len(endpoint.connections) < REQUESTS / 2


@pytest.mark.parametrize(
    "trouble",
    [error(503, "starting"), (200, '{"error": {"message": "engine died"}}'),
     chat("half of an", finish="abort")],
)  # fmt: skip
def test_what_can_pass_is_tried_again(trouble):
    with serving(lambda _, n: trouble if n < 2 else "") as endpoint:
        (sample,) = asked(engine(endpoint.url), 1)
    assert (sample.finish_reason, endpoint.attempts.total()) == ("stop", 3)


def test_without_a_number_as_many_are_asked_as_the_endpoint_sustains(monkeypatch):
    """It answers 12 at once: of 4, 8, 16 in flight the third is too many, whatever the rounds take.

    What a round brought in tokens a second is left out: that depends on this machine's load.
    """
    for name, value in (("ROUND_S", 0.5), ("FIRST", 4), ("WORTH", -1.0)):
        monkeypatch.setattr(concurrency, name, value)
    with serving(latency_s=0.25, slots=12) as endpoint:
        e = engine(endpoint.url, concurrency=None, max_retries=20)
        until_settled = takewhile(lambda _: not e._flow.level.settled, requests(5_000))
        samples = list(e.answer(until_settled))
    assert len({s.problem_id for s in samples}) == len(samples) < 5_000
    assert 8 <= e.measured["requests_in_flight"] <= 12
    assert e.measured["refusals"] > 0
    assert e.measured["stream_tokens_per_second"] > 0
    assert endpoint.most_in_flight <= 16


def test_a_refusal_is_no_failure_as_long_as_the_answers_of_others_grow():
    """One waits longer than its retries, and no answer has come by then."""
    with serving(latency_s=1.0, slots=1) as endpoint:
        samples = asked(engine(endpoint.url, concurrency=2, max_retries=2), 2)
    assert len(samples) == 2
    assert endpoint.faults["429 with Retry-After"] > 2


def test_the_next_request_waits_until_the_last_answer_is_taken():
    taken = 0

    def counted() -> Iterator[Request]:
        nonlocal taken
        for request in requests(1_000):
            taken += 1
            yield request

    with serving(latency_s=0.0) as endpoint:
        stream: Any = engine(endpoint.url, concurrency=2).answer(counted())
        for answers in range(1, 6):
            next(stream)
            time.sleep(0.02)  # time enough for many answers
            assert taken <= answers - 1 + 2  # two are asked, or not yet dealt with
        stream.close()


def test_longer_forms_of_the_asked_name_count_and_others_are_asked_again_or_refused():
    e = engine("http://127.0.0.1:9/v1")
    list(e.answer([]))  # begins to count
    for name in ("", "org/Teacher-R1", "teacher-r1-2025-01-20"):
        e._check_name(name, 1)
    with pytest.raises(module.BrokenReply, match="another model"):
        e._check_name("teacher-r1-distill-7b", 0)
    with pytest.raises(EngineError, match=r"another model \(llama\): .* set served_model"):
        e._check_name("llama", 1)
    for e._answered, broken in ((0, 0), (1, 1)):
        with pytest.raises(module.BrokenReply, match="another model"):
            e._check_name("llama", broken)


def test_finished_answers_come_first_and_then_the_failures_between_them_are_an_error(monkeypatch):
    """A success resets the count of those in a row."""
    monkeypatch.setattr(module, "MOST_FAILURES", 3)
    got: list[str] = []

    def choose(prompt: str, _: int) -> Any:
        return error(500, "no") if int(prompt.split()[1]) % 3 else ""

    with serving(choose) as endpoint:
        e = engine(endpoint.url, concurrency=1, max_retries=1)
        with pytest.raises(EngineError, match=r"8 requests failed after 1 retries each \(8 x HTTP"):
            got.extend(s.problem_id for s in e.answer(requests(12)))
    assert got == ["p0", "p3", "p6", "p9"]


def test_an_endpoint_that_dies_ends_the_stage_and_the_answers_stay(monkeypatch):
    monkeypatch.setattr(module, "MOST_FAILURES", 6)
    kept: list[Sample] = []
    with serving(latency_s=0.01) as endpoint:
        endpoint.choose = lambda *_: "" if endpoint.answers.total() < 20 else error(500, "dead")
        e = engine(endpoint.url, max_retries=1)
        with pytest.raises(EngineError, match="6 requests in a row failed, the last with HTTP 500"):
            kept.extend(e.answer(requests(500)))
    assert 20 <= len(kept) < 40
    assert endpoint.attempts.total() < 100


@pytest.mark.parametrize(
    ("status", "cure"),
    [(401, "environment variable OPENAI_API_KEY"), (402, "the account has no credit left"),
     (403, "access is refused"), (404, "it serves: teacher-r1")],
)  # fmt: skip
def test_a_fatal_status_ends_the_run_at_once_with_the_cure(status, cure, caplog):
    caplog.set_level("DEBUG")
    with (
        serving(lambda *_: error(status, f"Incorrect API key: {KEY}")) as endpoint,
        pytest.raises(EngineError, match=f"HTTP {status}") as caught,
    ):
        asked(engine(endpoint.url, concurrency=1), 50)
    assert endpoint.attempts.total() == 1
    assert cure in str(caught.value)
    assert "HTTP Request" in caplog.text  # the client's own log is on
    assert KEY not in str(caught.value) + caplog.text


def test_an_endpoint_that_is_not_there_is_named_in_one_line():
    with pytest.raises(EngineError) as caught:
        asked(engine("http://127.0.0.1:9/v1", max_retries=0), 100)
    line = str(caught.value)
    assert line.startswith("http://127.0.0.1:9/v1: no connection (")
    assert "is the server up, and is base_url right?" in line
    assert "\n" not in line


def test_a_request_the_endpoint_calls_wrong_is_an_error_and_so_is_where_all_are(monkeypatch):
    too_long = error(400, "maximum context length is 4096 tokens")
    with serving(lambda p, _: too_long if p.endswith("0") else "") as endpoint:
        answers = asked(engine(endpoint.url, concurrency=1), 3)
        assert [s.finish_reason for s in answers] == ["error", "stop", "stop"]
        assert endpoint.attempts["question 0"] == 1
        monkeypatch.setattr(module, "MOST_FAILURES", 3)
        endpoint.choose = lambda *_: error(400, f"top_p is not supported; {KEY}")
        with pytest.raises(EngineError, match="top_p is not supported") as caught:
            asked(engine(endpoint.url, concurrency=1), 9)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "prefill", "text", "finish"),
    [
        (chat("", finish="content_filter"), "", "", "refused"),
        (chat("4", reasoning_content="hm"), "", "<think>\nhm\n</think>\n\n4", "stop"),
        (chat("half \ud800"), "", "half ?", "stop"),
        (chat("x</think>4"), "", "<think>\nx</think>4", "stop"),
        (chat("x</think>4"), "<think>\n", "<think>\nx</think>4", "stop"),
        (chat("<think>\nx</think>4"), "<think>\n", "<think>\nx</think>4", "stop"),
    ],
)
def test_how_an_answer_ended_is_marked_and_reasoning_and_prefills_get_their_tags(
    reply, prefill, text, finish
):
    with serving(lambda *_: reply) as endpoint:
        (sample,) = asked(engine(endpoint.url, think_prefill=prefill), 1)
    assert (sample.text, sample.finish_reason) == (text, finish)


def test_an_answer_without_token_counts_is_kept_as_it_came(caplog):
    reply = {"choices": [{"finish_reason": "stop", "message": {"content": "42"}}]}
    with serving(lambda *_: (200, json.dumps(reply))) as endpoint:
        (sample,) = asked(engine(endpoint.url), 1)
    assert (sample.text, sample.prompt_tokens) == ("42", 0)
    assert "no token counts" in caplog.text


ROOT = Path(__file__).resolve().parents[2]
CLIENT = f"""
import json, sys
from pathlib import Path
from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings
from klear.tasks.answers.distill import distill
from klear.tasks.store.store import Artifact
from klear.training.engines import admission, endpoint

folder, url = Path(sys.argv[1]), sys.argv[2]
endpoint.FIRST_DELAY_S = admission.SHORTEST_HOLD_S = 0.02
runtime = EngineRuntime(concurrency={CONCURRENCY}, silence_timeout_s=10.0, output_price=2.0)
engine = EngineSettings(kind='openai', model='teacher-r1', base_url=url, runtime=runtime)
settings = SampleSettings(samples_per_prompt=2, engine=engine)
problems = Artifact.of_folder(folder / 'problems')
print(json.dumps(distill.body(folder, problems, settings=settings, seed=0)))
"""


def client(folder: Path, url: str) -> subprocess.Popen[str]:
    """Answer the problems of `folder`, in a process of its own."""
    environment = {**os.environ, "OPENAI_API_KEY": "sk-any", "PYTHONPATH": str(ROOT / ".package")}
    command = [sys.executable, "-c", CLIENT, str(folder), url]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)


def test_killed_in_the_middle_of_every_fault_it_ends_with_the_same_samples(tmp_path):
    prompts = (f"question {i}" for i in range(REQUESTS // 2))
    rows = [Problem(domain="math", prompt=p, answer="1", source="s") for p in prompts]
    (tmp_path / "problems").mkdir()
    write_table(tmp_path / "problems" / "kept.parquet", Problem, rows)
    with serving(one_percent_of_each, latency_s=0.02, size=4_000) as endpoint:
        first = client(tmp_path, endpoint.url)
        assert eventually(lambda: endpoint.answers.total() >= REQUESTS // 2, pause_s=0.02)
        first.kill()
        first.communicate()
        second = client(tmp_path, endpoint.url)
        output, errors = second.communicate(timeout=240)
        assert second.returncode == 0, errors[-3000:]
    samples = list(read_table(tmp_path / "samples.parquet", Sample))
    assert [(s.problem_id, s.index, s.text) for s in samples] == [
        (p.id, i, endpoint.right_answer(p.prompt)) for p in rows for i in range(2)
    ]
    # Only what was on its way when the process died was answered twice.
    assert 0 <= endpoint.answers.total() - REQUESTS <= CONCURRENCY
    assert max(endpoint.answers.values()) <= 2 + 2
    metrics = json.loads(output)
    tokens = sum(s.completion_tokens for s in samples)
    assert metrics["cost"] == pytest.approx(tokens * 2.0 / 1e6)
    assert metrics["samples"] == REQUESTS


def test_a_line_of_an_event_stream_ends_at_a_newline_alone():
    """A server that writes Unicode as it is sends U+2028 inside of its JSON."""
    sent = 'data: {"a": "x\u2028y\x85"}\r\n\r\ndata: [DO'.encode(), b"NE]\n"

    async def chunks():
        for chunk in sent:
            yield chunk

    async def received():
        return [line async for line in module.event_lines(chunks())]

    assert b"\n".join(asyncio.run(received())) == b"".join(sent)
    assert 'data: {"a": "x\u2028y\x85"}\r'.encode() in asyncio.run(received())


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 37, "completion_tokens": 530, "total_tokens": 567}, 530),
        ({"prompt_tokens": 37, "completion_tokens": 530, "total_tokens": 800}, 763),  # thinking
        ({"prompt_tokens": 37, "completion_tokens": 530}, 530),
        ({}, 1),  # a chunk with text
    ],
)
def test_tokens_of_thinking_count_where_the_endpoint_reports_them_in_the_total_alone(usage, tokens):
    reply = Reply()
    reply.add(json.dumps({"choices": [{"message": {"content": "7"}}], "usage": usage}))
    assert reply.tokens == tokens
