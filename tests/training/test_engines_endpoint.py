"""The endpoint engine against a loopback server that fails in every way a real one does."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from configs.engines import EngineRuntime, EngineSettings, Sampling
from training.engines import breaker, endpoint_errors
from training.engines.endpoint import EndpointEngine
from training.engines.interface import EngineError, Request

KEY = "sk-secret-0123456789"
Reply = tuple[int, dict[str, str], bytes]


def chat(content: str | None = "42", finish: str = "stop", **message: Any) -> Reply:
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content, **message},
    }
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "r1",
        "choices": [choice],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }
    return 200, {}, json.dumps(body).encode()


def failure(status: int, message: str = "no", **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "t", "code": None}}).encode()
    return status, {k.replace("_", "-"): v for k, v in headers.items()}, body


class Fake:
    """What the server saw; `reply` decides by prompt and attempt (from 0)."""

    def __init__(self, reply: Callable[[str, int], Reply]) -> None:
        self.reply = reply
        self.attempts: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.url = ""


@contextmanager
def serving(reply: Callable[[str, int], Reply]) -> Iterator[Fake]:
    fake = Fake(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = body["messages"][0]["content"]
            with fake.lock:
                attempt = fake.attempts[prompt]
                fake.attempts[prompt] += 1
                fake.bodies.append({**body, "authorization": self.headers["authorization"]})
                fake.in_flight += 1
                fake.most_in_flight = max(fake.most_in_flight, fake.in_flight)
            try:
                status, headers, content = fake.reply(prompt, attempt)
            finally:
                with fake.lock:
                    fake.in_flight -= 1
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            if "content-length" not in headers:
                self.send_header("content-length", str(len(content)))
            with suppress(ConnectionError):  # the client may have given up
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def quick_and_keyed(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint_errors, "FIRST_DELAY_S", 0.001)


def engine(fake: Fake, think_prefill: str = "", **runtime: Any) -> EndpointEngine:
    settings = EngineSettings(
        kind="openai",
        model="r1",
        base_url=fake.url,
        api_key_env="TEST_KEY",
        think_prefill=think_prefill,
        runtime=EngineRuntime(**{"concurrency": 4, "max_retries": 3, **runtime}),
    )
    return EndpointEngine(settings, Sampling(temperature=0.7, top_p=0.9, max_tokens=99))


def requests(*prompts: str) -> list[Request]:
    return [Request(problem_id=p, index=0, prompt=p, seed=i) for i, p in enumerate(prompts)]


def answers(e: EndpointEngine, *prompts: str) -> dict[str, Any]:
    return {s.problem_id: s for s in e.answer(requests(*prompts))}


def test_a_request_carries_the_protocol_the_seed_and_the_key():
    with serving(lambda *_: chat()) as fake:
        sample = answers(engine(fake), "hello")["hello"]
    (body,) = fake.bodies
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.9, 99)
    assert (body["model"], body["seed"]) == ("r1", 0)
    assert body["authorization"] == f"Bearer {KEY}"
    assert (sample.text, sample.prompt_tokens, sample.completion_tokens) == ("42", 5, 7)


def test_no_more_requests_are_in_flight_than_allowed():
    def slow(*_: Any) -> Reply:
        time.sleep(0.02)
        return chat()

    with serving(slow) as fake:
        got = answers(engine(fake, concurrency=3), *map(str, range(20)))
    assert len(got) == 20
    assert 1 < fake.most_in_flight <= 3


def cut_body(*_: Any) -> Reply:
    status, _headers, body = chat()
    return status, {"content-length": str(len(body) + 100)}, body


@pytest.mark.parametrize(
    "trouble",
    [
        lambda *_: failure(429),
        lambda *_: failure(500),
        lambda *_: failure(503),
        lambda *_: (200, {}, b"{not json"),
        lambda *_: (200, {}, b'{"choices": []}'),
        cut_body,
    ],
)
def test_what_can_pass_is_tried_again(trouble):
    with serving(lambda p, n: trouble() if n < 2 else chat()) as fake:
        e = engine(fake)
        assert answers(e, "a", "b")["b"].text == "42"
    assert fake.attempts == {"a": 3, "b": 3}
    assert e.retries == 4


def test_a_slow_reply_is_a_time_out_and_is_tried_again():
    def first_is_slow(_prompt: str, attempt: int) -> Reply:
        time.sleep(2.0 if attempt == 0 else 0)
        return chat()

    with serving(first_is_slow) as fake:
        e = engine(fake, request_timeout_s=1.0)
        assert answers(e, "a")["a"].text == "42"
    assert e.breaker.troubles["time-out"] >= 1


def test_the_wait_the_server_asks_for_is_kept():
    with serving(lambda p, n: failure(429, retry_after="0.3") if n == 0 else chat()) as fake:
        began = time.monotonic()
        answers(engine(fake), "a")
    assert time.monotonic() - began >= 0.3


def test_finished_answers_come_first_and_then_the_failed_requests_are_an_error():
    got = []
    with serving(lambda p, _: failure(500) if p == "bad" else chat()) as fake:
        e = engine(fake, max_retries=1)
        with pytest.raises(EngineError, match=r"1 requests failed after 1 retries each \(1 x HTTP"):
            got.extend(s.problem_id for s in e.answer(requests("a", "bad", "b")))
    assert sorted(got) == ["a", "b"]


def test_a_broken_endpoint_stops_the_run_after_some_failures_in_a_row():
    with serving(lambda *_: failure(500)) as fake:
        e = engine(fake, concurrency=1, max_retries=0, failures_in_a_row=5)
        with pytest.raises(EngineError, match="5 requests in a row failed, the last with HTTP 500"):
            answers(e, *map(str, range(100)))
    assert sum(fake.attempts.values()) == 5


def test_a_success_in_between_resets_the_count():
    with serving(lambda p, _: failure(500) if int(p) % 3 else chat()) as fake:
        e = engine(fake, concurrency=1, max_retries=0, failures_in_a_row=3)
        with pytest.raises(EngineError, match="8 requests failed"):
            answers(e, *map(str, range(12)))


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_a_wrong_key_or_model_stops_at_once_without_telling_the_key(status, caplog):
    with serving(lambda *_: failure(status, f"Incorrect API key provided: {KEY}")) as fake:
        e = engine(fake, concurrency=1)
        with pytest.raises(EngineError, match=f"HTTP {status}") as caught:
            answers(e, *map(str, range(50)))
    assert sum(fake.attempts.values()) == breaker.HOPELESS_IN_A_ROW
    assert KEY not in str(caught.value) + caplog.text


def test_a_request_the_endpoint_calls_wrong_is_handed_over_as_an_error():
    too_long = failure(400, "maximum context length is 4096 tokens")
    with serving(lambda p, _: too_long if p == "long" else chat()) as fake:
        got = answers(engine(fake), "a", "long", "b")
    assert (got["long"].finish_reason, got["long"].text) == ("error", "")
    assert got["b"].finish_reason == "stop"
    assert fake.attempts["long"] == 1


def test_when_all_requests_are_called_wrong_the_settings_are_and_the_server_says_why():
    with serving(lambda *_: failure(400, f"top_p is not supported; {KEY}")) as fake:
        e = engine(fake, concurrency=1, failures_in_a_row=3)
        with pytest.raises(EngineError, match="top_p is not supported") as caught:
            answers(e, *map(str, range(9)))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (chat("cut", finish="length"), "cut", "length"),
        (chat("", finish="stop"), "", "empty"),
        (chat(None, finish="stop"), "", "empty"),
        (chat("", finish="content_filter"), "", "refused"),
        (chat("4", reasoning_content="hm"), "<think>\nhm\n</think>\n\n4", "stop"),
        (chat("4", reasoning="hm"), "<think>\nhm\n</think>\n\n4", "stop"),
        (chat("", reasoning_content="hm hm", finish="length"), "<think>\nhm hm", "length"),
        (chat("half \ud800"), "half ?", "stop"),
    ],
)
def test_how_an_answer_ended_is_marked_and_reasoning_gets_its_tags(reply, text, finish):
    with serving(lambda *_: reply) as fake:
        sample = answers(engine(fake), "a")["a"]
    assert (sample.text, sample.finish_reason) == (text, finish)


def test_a_prefill_of_the_template_is_judged_with_the_answer():
    with serving(lambda p, _: chat("<think>x</think>4" if p == "own" else "x</think>4")) as fake:
        got = answers(engine(fake, think_prefill="<think>\n"), "own", "bare")
    assert got["own"].text == "<think>x</think>4"
    assert got["bare"].text == "<think>\nx</think>4"


def test_a_consumer_that_stops_early_leaves_no_thread_behind():
    before = set(threading.enumerate())
    with serving(lambda *_: chat()) as fake:
        stream = engine(fake).answer(requests(*map(str, range(1000))))
        next(stream)
        stream.close()
        assert sum(fake.attempts.values()) < 1000
    new = set(threading.enumerate()) - before
    assert not [t for t in new if t.name.startswith(("endpoint", "asyncio"))]


def test_requests_are_taken_as_they_are_needed():
    taken = 0

    def endless() -> Iterator[Request]:
        nonlocal taken
        while True:
            taken += 1
            yield Request(problem_id=str(taken), index=0, prompt=str(taken))

    def slow(*_: Any) -> Reply:
        time.sleep(0.05)
        return chat()

    with serving(slow) as fake:
        stream = engine(fake, concurrency=2).answer(endless())
        next(stream)
        stream.close()
    assert taken < 10
