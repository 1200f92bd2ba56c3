"""An OpenAI-compatible endpoint on loopback that answers, or fails in the way it is told to."""

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from klear.training.engines import admission, endpoint

MODEL = "teacher-r1"
FAULTS = (
    "429", "429 with Retry-After", "500", "hang", "cut stream", "torn connection",
    "truncated JSON", "another model answers", "404", "slow first token",
)  # fmt: skip
Choose = Callable[[str, int], Any]
"""(prompt, attempt from 0) → a fault, or status, body and perhaps headers, or '' for the right
answer."""


def error(status: int, message: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    names = {n.replace("_", "-"): v for n, v in (headers or {"retry_after_ms": "1"}).items()}
    return status, json.dumps({"error": {"message": message, "type": "t", "code": None}}), names


def chat(
    content: Any = "42", finish: str | None = "stop", fingerprint: str = "fp_1", **more: Any
) -> tuple[int, str]:
    choice = {"index": 0, "finish_reason": finish, "message": {"content": content, **more}}
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    named = {"model": MODEL, "system_fingerprint": fingerprint}
    return 200, json.dumps({**named, "choices": [choice], "usage": usage})


def one_percent_of_each(prompt: str, attempt: int) -> str:
    """Ten of every hundred questions meet one fault each, once (a 404 at first would be fatal)."""
    number = int(prompt.split()[1]) % 100 - 50
    return FAULTS[number] if attempt == 0 and 0 <= number < len(FAULTS) else ""


def text_of(prompt: str, size: int) -> str:
    """The one right answer to a prompt, `size` characters or more."""
    word = hashlib.sha256(prompt.encode()).hexdigest()
    return f"<think>\n{word * (size // 64)}\n</think>\n\nanswer {word}"


class Endpoint:
    """What the server does and what it saw."""

    def __init__(
        self, choose: Choose, latency_s: float, slots: int, say: Callable[[str], str]
    ) -> None:
        self.choose, self.latency_s, self.right_answer = choose, latency_s, say
        self.slots = slots
        """More requests at once are refused with 429, as a rate limit does."""
        self.url = ""
        self.models: Any = [{"id": MODEL, "root": "/weights/a"}]
        """What it lists, or the status with which it does not."""
        self.bodies: list[dict[str, Any]] = []
        self.connections: set[tuple[str, int]] = set()
        self.attempts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0

    async def list(self, _: web.Request) -> web.Response:
        if isinstance(self.models, int):
            return web.json_response({"error": "no list"}, status=self.models)
        return web.json_response({"data": self.models})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["messages"][0]["content"]
        self.bodies.append({**body, "key": request.headers.get("authorization", "")})
        assert request.transport
        self.connections.add(request.transport.get_extra_info("peername"))
        chosen = self.choose(prompt, self.attempts[prompt])
        if self.slots and self.in_flight >= self.slots:
            chosen = "429 with Retry-After"
        self.attempts[prompt] += 1
        self.faults[chosen if isinstance(chosen, str) else str(chosen[0])] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if isinstance(chosen, tuple):
                status, text, *headers = chosen
                return _json(text, status, *headers)
            response = await self._answer(request, prompt, chosen, body["stream"])
            self.answers[prompt] += chosen in ("", "slow first token")
            return response
        finally:
            self.in_flight -= 1

    async def _answer(
        self, request: web.Request, prompt: str, fault: str, stream: bool
    ) -> web.StreamResponse:
        if fault[:3].isdigit():
            status, text, _ = error(int(fault[:3]), f"not now: {fault}")
            return _json(text, status, {"retry-after": "0.2"} if " " in fault else {})
        if fault == "hang":
            await asyncio.sleep(3600)  # until the client gives up
        await asyncio.sleep(2 * self.latency_s if fault == "slow first token" else 0)
        model = "another" if fault == "another model answers" else MODEL
        text, cut = self.right_answer(prompt), fault in ("cut stream", "torn connection")
        usage = {"prompt_tokens": 5, "completion_tokens": len(text) // 4}
        if stream and fault != "truncated JSON":
            return await self._stream(request, text, model, usage, fault)
        await asyncio.sleep(self.latency_s)
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": text}}
        body = json.dumps({"model": model, "choices": [choice], "usage": usage})
        half = body[: len(body) // 2]
        if not cut:
            return _json(half if fault == "truncated JSON" else body)
        response = web.StreamResponse(headers={"content-length": str(len(body))})
        await response.prepare(request)
        await response.write(half.encode())
        assert request.transport
        request.transport.close()
        return response

    async def _stream(
        self, request: web.Request, text: str, model: str, usage: dict[str, int], fault: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def event(**data: Any) -> None:
            await response.write(f"data: {json.dumps({'model': model, **data})}\n\n".encode())

        step = len(text) // 4 + 1
        for start in range(0, len(text), step):
            await asyncio.sleep(self.latency_s / 4)
            delta = {"content": text[start : start + step]}
            await event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
            if start and fault in ("cut stream", "torn connection"):
                if fault == "torn connection" and request.transport:
                    request.transport.close()
                return response  # else a clean end of the body, but not of the answer
        await event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        await event(choices=[], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


@contextmanager
def serving(
    choose: Choose = lambda *_: "",
    *,
    latency_s: float = 0.02,
    size: int = 400,
    slots: int = 0,
    say: Callable[[str], str] | None = None,
) -> Iterator[Endpoint]:
    """At /v1 and below every other folder."""
    server = Endpoint(choose, latency_s, slots, say or (lambda prompt: text_of(prompt, size)))
    routes = [
        web.get("/{where:.*}v1/models", server.list),
        web.post("/{where:.*}v1/chat/completions", server.complete),
    ]
    with serving_routes(routes) as server.url:
        yield server


@contextmanager
def serving_routes(routes: Iterable[web.RouteDef]) -> Iterator[str]:
    """Their base URL."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def there(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(30)

    there(runner.setup())
    there(web.TCPSite(runner, "127.0.0.1", 0).start())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        there(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine of this process waits before it asks again."""
    monkeypatch.setattr(endpoint, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(admission, "SHORTEST_HOLD_S", 0.01)
