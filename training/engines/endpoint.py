"""Any OpenAI-compatible endpoint: many requests in flight, patient with it, honest about failure.

The openai client tries again what can pass: refusals for overload, server errors, time-outs, lost
connections. What it has handed on already, a reply that breaks off or is no answer, is asked for
again here. `in_flight` finds how many are asked at once. A request that still fails is left out and
reported at the end, so that the next run asks for it again. One that the endpoint calls wrong (too
long, say) has finish_reason `error`. `MOST_FAILURES` with no success in between end the stage.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import openai

from klear.configs.settings.engines import MOST_REQUESTS, EngineSettings, Sampling
from klear.eval.answers import THINK_CLOSE, THINK_OPEN, writable
from klear.eval.records import FinishReason, Sample
from klear.training.engines.in_flight import InFlight
from klear.training.engines.interface import Engine, EngineError, Request, ask_concurrently

FATAL = {  # no waiting changes these; once answers came, a broken balancer may send one
    401: "the key is refused",
    402: "the account has no credit left",
    403: "access is refused",
    404: "no such model or URL",
}
OVERLOADED = (429, 503)
PASSING = (408, 409, 429)  # statuses below 500 that say nothing about the request itself
INTERRUPTED = ("insufficient_system_resource", "abort", "error")  # DeepSeek, vLLM, SGLang
FINISHES: dict[str, FinishReason] = {"length": "length", "content_filter": "refused"}
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 60.0
CONNECT_TIMEOUT_S, LIST_TIMEOUT_S = 30.0, 20.0
MOST_FAILURES = 16  # in a row
NO_KEY = "none"


class BrokenReply(Exception):
    """The reply cannot be used, through no fault of the request: ask again."""


class EndpointEngine(Engine):
    """Answers over HTTP. The key comes from `key` or the environment; it is written nowhere."""

    def __init__(
        self, settings: EngineSettings, sampling: Sampling, key: str | None = None
    ) -> None:
        super().__init__(settings, sampling)
        name = settings.api_key_env
        self._key = key or (os.environ.get(name, "") if name else NO_KEY)
        if not self._key:
            raise EngineError(
                f"{settings.base_url} needs a key: set the environment variable {name} (any text "
                "for a local server without keys)"
            )

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples as they arrive. Raises EngineError after them if requests were given up."""
        self._answered = self._failed_in_a_row = self._heard = 0
        self._failures: Counter[str] = Counter()
        self._tokens = self._seconds = 0.0
        runtime = self.settings.runtime
        flow = self._flow = InFlight(runtime.concurrency or MOST_REQUESTS)

        async def count(response: httpx2.Response) -> None:
            flow.sent += 1
            flow.refused += response.status_code in OVERLOADED

        client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.settings.base_url,
            max_retries=runtime.max_retries,
            timeout=openai.Timeout(runtime.silence_timeout_s, connect=CONNECT_TIMEOUT_S, pool=None),
            http_client=openai.DefaultAsyncHttpxClient(
                event_hooks={"response": [count]}, limits=httpx2.Limits()
            ),
        )
        with asyncio.Runner() as runner:
            try:
                ask = partial(self._ask, client)
                yield from ask_concurrently(runner, ask, requests, flow.limit)
            finally:
                runner.run(client.close())
                self._measure(flow)
        self._raise_failures(f"after {runtime.max_retries} retries each")

    def _measure(self, flow: InFlight) -> None:
        found = {"refusals": float(flow.refusals + flow.refused)}
        if self._seconds:
            found["stream_tokens_per_second"] = self._tokens / self._seconds
        if flow.sustained:
            found["requests_in_flight"] = float(flow.sustained)
        self.measured = found

    def _raise_failures(self, when: str) -> None:
        if self._failures:
            reasons = ", ".join(f"{n} x {why}" for why, n in self._failures.most_common(5))
            raise EngineError(
                f"{self.settings.base_url}: {self._failures.total()} requests failed {when} "
                f"({reasons}); finished answers are kept, run again for the rest"
            )

    async def _ask(self, client: openai.AsyncOpenAI, request: Request) -> Sample | None:
        """A sample; None where the request failed. Raises EngineError where all would fail.

        While it waits for another attempt a request keeps its place among those in flight, so an
        endpoint that refuses is asked less. Refusals cost nothing as long as others are answered,
        or their answers grow.
        """
        broken, s = 0, self.settings
        while True:
            before = self._heard
            try:
                return self._take(request, await self._send(client, request), broken)
            except openai.APIStatusError as error:
                status, words = error.status_code, str(error.message).partition("\n")[0][:200]
                reason = f"HTTP {status} ({words.replace(self._key, '***')})"
                again = status in FATAL
                if again and not self._answered:
                    raise self._fatal(status) from None
                if status in OVERLOADED and self._heard > before:
                    continue
                if status < 500 and not again and status not in PASSING:
                    self._count_failure(reason)
                    return request.answered(s.model, "", "error")
            except openai.APIConnectionError as error:  # time-outs too
                reason, again = f"no connection ({error.__cause__ or error})", False
                late = isinstance(error, openai.APITimeoutError)
                self._flow.refused += late
                if not self._answered and not late:
                    raise EngineError(
                        f"{s.base_url}: {reason}: is the server up, and is base_url right?"
                    ) from error
            except (BrokenReply, TimeoutError, httpx2.HTTPError) as error:
                reason, again = str(error) or type(error).__name__, True
                self._flow.refused += isinstance(error, (TimeoutError, httpx2.TimeoutException))
            broken += 1
            if not again or broken > s.runtime.max_retries:
                self._failures[reason] += 1
                self._count_failure(reason)
                return None
            delay = min(FIRST_DELAY_S * 2 ** (broken - 1), LONGEST_DELAY_S)
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))

    async def _send(self, client: openai.AsyncOpenAI, request: Request) -> "Reply":
        """One attempt, read to its end: server-sent events, or one JSON body where the server does
        not stream. The package's own parser of events makes a pydantic object of each token."""
        reply = Reply()

        def hear(data: bytes | str) -> None:
            had = reply.tokens
            reply.add(data)
            self._flow.tokens += reply.tokens - had
            self._heard += 1

        asked: Any = {
            **self._body(request),
            "stream": True,  # gateways cut silent connections
            "stream_options": {"include_usage": True},
        }
        async with client.chat.completions.with_streaming_response.create(**asked) as response:
            began = time.monotonic()
            async with asyncio.timeout(self.settings.runtime.request_timeout_s):
                if "event-stream" not in response.headers.get("content-type", ""):
                    hear(await response.read())
                    return reply
                async for line in response.iter_lines():
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        hear(data)
            self._seconds += time.monotonic() - began
            self._tokens += reply.tokens
        return reply

    def _body(self, request: Request) -> dict[str, Any]:
        """What a request says, however it is sent, as arguments of the client."""
        s = self.sampling
        extra = {"top_k": s.top_k, "repetition_penalty": s.repetition_penalty}
        return {
            "model": self.settings.model,
            "messages": [{"role": "user", "content": request.prompt}],
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
            "seed": request.seed,
            "extra_body": {n: v for n, v in extra.items() if v is not None},
        }

    def _take(self, request: Request, reply: "Reply", broken: int) -> Sample:
        """The sample of a reply, the first after `broken` ones; raises BrokenReply."""
        finish, s = reply.finish(), self.settings
        self._check_name(reply.model, broken)
        self._answered += 1
        self._failed_in_a_row = 0
        text = reply.text(s.think_prefill)
        return request.answered(s.model, text, finish, reply.prompt_tokens, reply.tokens)

    def _check_name(self, name: str, broken: int) -> None:
        """Raise BrokenReply when another model answered: a gateway may route a request elsewhere.

        A name that contains the asked one, or is contained in it, is the same: `gpt-4o` answers as
        `gpt-4o-2024-08-06`. Raises EngineError where nothing else came, not the second time either.
        """
        s = self.settings
        asked, plain = (n.rpartition("/")[2].lower() for n in (s.served_model or s.model, name))
        if plain not in asked and asked not in plain:
            reason = f"answered by another model ({name[:60]})"
            if broken and not self._answered:
                raise EngineError(f"{s.base_url}: {reason}: if it is the same, set served_model")
            raise BrokenReply(reason)

    def _count_failure(self, reason: str) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= MOST_FAILURES:
            raise EngineError(
                f"{self.settings.base_url}: {self._failed_in_a_row} requests in a row failed, the "
                f"last with {reason}; {self._answered} were answered; finished answers are kept"
            )

    def _fatal(self, status: int) -> EngineError:
        s, hint = self.settings, "base_url usually ends in /v1"
        if status == 404:
            with suppress(EngineError):
                hint = f"it serves: {', '.join(served_models(s.base_url, self._key)[:8])}"
        elif s.api_key_block:
            hint = f"the key is in the Prefect Secret block {s.api_key_block}"
        else:
            name = s.api_key_env or "(none is named)"
            hint = f"the key is in the environment variable {name}"
        what = f"{FATAL[status]} (HTTP {status})"
        return EngineError(f"{what} by {s.base_url} for model {s.model}; {hint}")


@dataclass
class Reply:
    """One answer as it comes in. It counts only when the endpoint said how it ended."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    model: str = ""  # the name under which the endpoint answered
    ended: str = ""  # the endpoint's finish reason; empty: none was given
    refusal: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    """Of the answer; chunks with text, which is about the same, until the endpoint says it."""

    def add(self, text: bytes | str) -> None:
        """Take in one chunk of a stream, or the whole body; raises BrokenReply."""
        try:
            data: dict[str, Any] = json.loads(text)
            self.model = self.model or str(data.get("model") or "")
            for choice in data["choices"][:1]:
                message = choice.get("delta") or choice.get("message") or {}
                content = message.get("content") or ""
                reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
                self.tokens += bool(content or reasoning)
                self.content.append(content)
                self.reasoning.append(reasoning)
                self.refusal |= bool(message.get("refusal"))
                self.ended = choice.get("finish_reason") or self.ended
            if usage := data.get("usage"):
                self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
                self.tokens = int(usage.get("completion_tokens") or self.tokens)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BrokenReply("garbled JSON, or an error inside of the reply") from error

    def finish(self) -> FinishReason:
        """How the answer ended; raises BrokenReply when it did not."""
        if not self.ended:
            raise BrokenReply("the stream was cut")
        if self.ended in INTERRUPTED:
            raise BrokenReply(f"the server gave up ({self.ended})")
        if self.refusal:
            return "refused"
        found = FINISHES.get(self.ended, "stop")
        return "empty" if found == "stop" and not "".join(self.content).strip() else found

    def text(self, think_prefill: str) -> str:
        """What the judge sees: reasoning that the endpoint reports apart is put into think tags.

        Reasoning that was cut before any answer stays unclosed. Where the template wrote the
        opening tag, so that the text only closes it, the tag is put back.
        """
        content, reasoning = (writable("".join(t)) for t in (self.content, self.reasoning))
        if reasoning:
            closed = f"\n{THINK_CLOSE}\n\n" if content.strip() else ""
            return f"{THINK_OPEN}\n{reasoning.strip()}{closed}{content}"
        if content and think_prefill and not content.startswith(think_prefill.strip()):
            return think_prefill + content
        if not think_prefill and THINK_CLOSE in content and THINK_OPEN not in content:
            return f"{THINK_OPEN}\n{content}"
        return content


def served_models(base_url: str, key: str = "") -> list[str]:
    """Their names, sorted. Raises EngineError in one line that holds no key."""
    try:
        with openai.OpenAI(
            api_key=key or NO_KEY, base_url=base_url, timeout=LIST_TIMEOUT_S, max_retries=1
        ) as client:
            return sorted(m.id for m in client.models.list().data)
    except openai.APIStatusError as error:
        hints = {**FATAL, 404: "no such URL; base_url usually ends in /v1"}
        why = f"HTTP {error.status_code} {hints.get(error.status_code, '')}".strip()
    except (openai.APIError, ValueError, TypeError, AttributeError) as error:
        why = str(error.__cause__ or type(error).__name__)
    raise EngineError(f"{base_url} does not say which models it serves: {why}") from None
