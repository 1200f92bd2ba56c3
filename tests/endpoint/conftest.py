"""An OpenAI-compatible endpoint on loopback that answers, or fails in the way it is told to."""

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

MODEL = "teacher-r1"
FAULTS = (
    "429", "429 with Retry-After", "500", "hang", "cut stream", "truncated JSON",
    "another model answers", "404", "slow first token",
)  # fmt: skip
STATUS = {"429": 429, "429 with Retry-After": 429, "500": 500, "401": 401, "404": 404}
Choose = Callable[[str, int], str | tuple[int, str]]
"""(prompt, attempt from 0) → a fault, or status and body, or '' for the right answer."""


def text_of(prompt: str, size: int) -> str:
    """The one right answer to a prompt, `size` characters or more."""
    word = hashlib.sha256(prompt.encode()).hexdigest()
    return f"<think>\n{word * (size // 64)}\n</think>\n\nanswer {word}"


class Endpoint:
    """What the server does and what it saw."""

    def __init__(
        self,
        choose: Choose,
        latency_s: float,
        size: int,
        slots: int,
        say: Callable[[str], str] | None,
    ) -> None:
        self.choose, self.latency_s, self.size, self.say = choose, latency_s, size, say
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self.attempts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = self.connections = 0
        self.slots = slots
        """More requests at once are refused with 429, as a rate limit does."""

    def right_answer(self, prompt: str) -> str:
        return self.say(prompt) if self.say else text_of(prompt, self.size)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(line[15:]) for line in head.decode().lower().split("\r\n")
                     if line.startswith("content-length:")), 0,
                )  # fmt: skip
                body = await reader.readexactly(length)
                if head.startswith(b"GET"):
                    _send(writer, 200, json.dumps({"data": [{"id": MODEL}]}))
                else:
                    key = head.decode().lower().partition("authorization: ")[2]
                    seen = {**json.loads(body), "key": key.partition("\r\n")[0]}
                    await self._complete(reader, writer, seen)
                await writer.drain()
        writer.close()

    async def _complete(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any]
    ) -> None:
        prompt = body["messages"][0]["content"]
        self.bodies.append(body)
        chosen = self.choose(prompt, self.attempts[prompt])
        fault = chosen if isinstance(chosen, str) else str(chosen[0])
        if self.slots and self.in_flight >= self.slots:
            chosen = fault = "429 with Retry-After"
        self.attempts[prompt] += 1
        self.faults[fault] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if fault == "hang":
                await reader.read()  # until the client gives up
                raise ConnectionError
            if isinstance(chosen, str):
                await self._answer(writer, prompt, chosen, stream=bool(body.get("stream")))
            else:
                _send(writer, chosen[0], chosen[1], "retry-after-ms: 1\r\n")
        finally:
            self.in_flight -= 1

    async def _answer(
        self, writer: asyncio.StreamWriter, prompt: str, fault: str, stream: bool
    ) -> None:
        if fault in STATUS:
            more = "retry-after: 0.2\r\n" if fault == "429 with Retry-After" else ""
            error = json.dumps(
                {"error": {"message": f"not now: {fault}", "type": "t", "code": None}}
            )
            _send(writer, STATUS[fault], error, more)
            return
        if fault == "slow first token":
            await asyncio.sleep(2 * self.latency_s)
        model = "another" if fault == "another model answers" else MODEL
        text = self.right_answer(prompt)
        if fault == "truncated JSON":
            await asyncio.sleep(self.latency_s)
            _send(writer, 200, _whole(text, model)[: self.size // 2])
        elif stream:
            await self._stream(writer, text, model, cut=fault == "cut stream")
        else:
            await asyncio.sleep(self.latency_s)
            whole = _whole(text, model).encode()
            kept = len(whole) // 2 if fault == "cut stream" else len(whole)
            writer.write(_head(200, f"content-length: {len(whole)}\r\n") + whole[:kept])
            if fault == "cut stream":
                writer.close()
        self.answers[prompt] += not fault or fault == "slow first token"

    async def _stream(self, writer: asyncio.StreamWriter, text: str, model: str, cut: bool) -> None:
        writer.write(_head(200, "transfer-encoding: chunked\r\n", "text/event-stream"))
        step = len(text) // 4 + 1
        for start in range(0, len(text), step):
            await asyncio.sleep(self.latency_s / 4)
            _event(writer, _chunk({"content": text[start : start + step]}, None, model))
            await writer.drain()
            if cut and start >= step:
                writer.write(b"0\r\n\r\n")  # a clean end of the body, but not of the answer
                return
        _event(writer, _chunk({}, "stop", model))
        usage = {"prompt_tokens": 5, "completion_tokens": len(text) // 4, "total_tokens": 0}
        _event(writer, json.dumps({"model": model, "choices": [], "usage": usage}))
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")


def _head(status: int, more: str = "", kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\n{more}\r\n".encode()


def _send(writer: asyncio.StreamWriter, status: int, body: str, more: str = "") -> None:
    content = body.encode()
    writer.write(_head(status, f"content-length: {len(content)}\r\n{more}") + content)


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    line = f"data: {data}\n\n".encode()
    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")


def _chunk(delta: dict[str, str], finish: str | None, model: str) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "x", "model": model, "choices": [choice]})


def _whole(text: str, model: str) -> str:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": text}}
    usage = {"prompt_tokens": 5, "completion_tokens": len(text) // 4}
    return json.dumps({"id": "x", "model": model, "choices": [choice], "usage": usage})


@contextmanager
def serving(
    choose: Choose = lambda *_: "",
    *,
    latency_s: float = 0.02,
    size: int = 400,
    slots: int = 0,
    say: Callable[[str], str] | None = None,
) -> Iterator[Endpoint]:
    endpoint = Endpoint(choose, latency_s, size, slots, say)
    started, loop = threading.Event(), asyncio.new_event_loop()

    async def listen() -> None:
        server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=512)
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        started.set()
        with suppress(asyncio.CancelledError):
            await server.serve_forever()

    def run() -> None:
        with suppress(RuntimeError):
            loop.run_until_complete(listen())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with suppress(RuntimeError, asyncio.CancelledError):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.fixture
def endpoint_of() -> Callable[..., Any]:
    """`with endpoint_of(choose, latency_s=…) as endpoint:` runs a server for the block."""
    return serving


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def until() -> Callable[..., bool]:
    def wait(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()

    return wait
