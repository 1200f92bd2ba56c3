"""Any OpenAI-compatible endpoint: many requests in flight, patient with it, honest about failure.

What can pass is tried again: refusals for overload (`admission` holds all requests meanwhile),
server errors, time-outs, lost connections, replies that break off. A request that still fails is
reported at the end, and asked again by the next run. One that the endpoint calls wrong has
finish_reason `error` and its words as text. `MOST_FAILURES` with no success in between end the
stage, and so does a parameter that the endpoint does not take: the message names the setting.
"""

import asyncio
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import httpx2
import openai

from ...configs.settings.engines import MOST_REQUESTS, OMIT, EngineSettings, Parameter, Sampling
from ...eval.records import Sample
from ...eval.thinking import foreign_tags, name_tags
from .admission import LONGEST_WAIT_S, Admission, Ticket, seconds_to_wait
from .concurrency import AdaptiveConcurrency
from .interface import Engine, EngineError, Request, ask_concurrently
from .refusals import Refusal, read_refusal
from .reply import BrokenReply, Reply

FATAL = {  # no waiting changes these; once answers came, a broken balancer may send one
    401: "the key is refused",
    402: "the account has no credit left",
    403: "access is refused",
    404: "no such model or URL",
}
OVERLOADED = (429, 498, 503, 529)
PASSING = (408, 409)  # statuses below 500 that say nothing about the request itself
NO_CREDIT = "insufficient_quota"  # OpenAI says so with 429
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 8.0
CONNECT_TIMEOUT_S, LIST_TIMEOUT_S = 30.0, 20.0
MOST_FAILURES = 16  # in a row
CLOCK_S = 60.0  # a model made less than this before the reply is dated by the server's clock
NO_KEY = "none"
SIZES = {"mini", "nano", "lite", "small", "tiny", "flash", "air", "distill"}
DESCRIBES = ("root", "parent", "owned_by", "created", "max_model_len", "meta")
"""What a server says of a model that stays the same from request to request."""


class EndpointEngine(Engine):
    """Answers over HTTP. The key comes from `key` or the environment; it is written nowhere."""

    def __init__(
        self, settings: EngineSettings, sampling: Sampling, key: str | None = None
    ) -> None:
        super().__init__(settings, sampling)
        name = settings.api_key_env
        self._key = key or (os.environ.get(name, "") if name else NO_KEY)
        if not self._key:
            fix = f"set the environment variable {name} (any text for a local server without keys)"
            raise EngineError(f"{settings.base_url} needs a key: {fix}")

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples as they arrive. Raises EngineError after them if requests were given up."""
        self._answered = self._failed_in_a_row = self._heard = self._heard_before = 0
        self._failures: Counter[str] = Counter()
        self._tokens = self._seconds = 0.0
        self._names: dict[Parameter, str] = dict(self.settings.parameters)
        self._seen = set[str]()
        runtime = self.settings.runtime
        gate = self._gate = Admission(lambda note: self.tell(note))
        most = runtime.concurrency or MOST_REQUESTS
        flow = self._flow = AdaptiveConcurrency(most, gate.open_seconds)
        client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.settings.base_url,
            max_retries=0,
            timeout=openai.Timeout(runtime.silence_timeout_s, connect=CONNECT_TIMEOUT_S, pool=None),
            http_client=openai.DefaultAsyncHttpxClient(limits=httpx2.Limits()),
        )
        with asyncio.Runner() as runner:
            try:
                ask = partial(self._ask, client)
                yield from ask_concurrently(runner, ask, requests, flow.limit)
            finally:
                runner.run(client.close())
                speed = self._tokens / self._seconds if self._seconds else None
                busy, refusals = flow.sustained or None, flow.refusals + flow.refused
                figures = {"refusals": refusals, "stream_tokens_per_second": speed}
                figures |= {"requests_in_flight": busy}
                self.measured = {n: float(v) for n, v in figures.items() if v is not None}
        if self._failures:
            reasons = ", ".join(f"{n} x {why}" for why, n in self._failures.most_common(5))
            failed = f"{self._failures.total()} requests failed after {runtime.max_retries} retries"
            kept = "finished answers are kept, run again for the rest"
            raise EngineError(f"{self.settings.base_url}: {failed} each ({reasons}); {kept}")

    async def _ask(self, client: openai.AsyncOpenAI, request: Request) -> Sample | None:
        """A sample; None where the request failed. Raises EngineError where all would fail. A
        request that waits for another attempt keeps its place in flight; refusals for overload cost
        it nothing."""
        broken, s, most = 0, self.settings, self.settings.runtime.max_retries
        while True:
            ticket = await self._gate.enter()
            names = dict(self._names)
            self._flow.sent += 1
            try:
                return self._take(request, await self._send(client, request, ticket), broken)
            except openai.APIStatusError as error:
                status, refusal = error.status_code, read_refusal(error.response.text)
                refusal = refusal._replace(words=refusal.words.replace(self._key, "***"))
                reason = f"HTTP {status} ({refusal.words})"
                fatal = 402 if NO_CREDIT in error.response.text else status
                if fatal in FATAL and not self._answered:
                    raise self._fatal(fatal, refusal.words) from None
                if status in OVERLOADED:
                    self._flow.refused += 1
                    self._hold(ticket, error.response.headers, reason)
                    continue
                if status < 500 and status not in (*FATAL, *PASSING):
                    adapted = self._adapts(names, refusal, reason)
                    ticket.close()
                    if adapted:
                        continue
                    self._count_failure(reason)
                    return request.answered(s.model, reason, "error")
            except openai.APIConnectionError as error:  # time-outs too
                reason = f"no connection ({error.__cause__ or error})"
                silent = isinstance(error, openai.APITimeoutError)
                if not silent or isinstance(error.__cause__, httpx2.ConnectTimeout):
                    self._hold(ticket, {}, reason)
                    continue
                self._flow.refused += 1
            except (BrokenReply, TimeoutError, httpx2.HTTPError) as error:
                reason = str(error) or type(error).__name__
                self._flow.refused += isinstance(error, (TimeoutError, httpx2.TimeoutException))
            ticket.close()  # not where an error ends all: then no other is sent
            broken += 1
            if broken > most:
                self._failures[reason] += 1
                self._count_failure(reason)
                return None
            if not self._answered:
                self.tell(f"{reason}: attempt {broken} of {most}")
            delay = min(FIRST_DELAY_S * 2 ** (broken - 1), LONGEST_DELAY_S)
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))

    def _hold(self, ticket: Ticket, headers: Mapping[str, str], reason: str) -> None:
        """All requests wait as they are told. Raises EngineError where that is too long, or where
        as many attempts as one request has were in vain while nothing else was heard."""
        gate, url, most = self._gate, self.settings.base_url, self.settings.runtime.max_retries
        if self._heard > self._heard_before:
            gate.refusals = 0
        self._heard_before = self._heard
        cure = "finished answers are kept, run again for the rest"
        if not (headers or self._answered):
            cure = "is the server up, and is base_url right?"
        retry_after = seconds_to_wait(headers, datetime.now(UTC))
        if retry_after is not None and retry_after > LONGEST_WAIT_S:
            hours = f"wait {retry_after / 3600:,.1f} hours (Retry-After)"
            raise EngineError(f"{url}: {reason} and says to {hours}; {cure}")
        if gate.refusals >= most and not gate.holding:
            times = f", {gate.refusals + 1} times in a row" * bool(gate.refusals)
            raise EngineError(f"{url}: {reason}{times}; {cure}")
        gate.hold(retry_after, f"{url}: {reason}")
        ticket.close()

    def _adapts(self, names: Mapping[Parameter, str], refusal: Refusal, reason: str) -> bool:
        """Whether to ask again, without what was refused or under its other name: where that
        changes no answer. Raises EngineError with the setting for a parameter refused to the first
        request."""
        if names != self._names:  # sent before another one learnt it
            return True
        sent: dict[str, Parameter] = {names.get(p, p): p for p in self._values()}
        name = refusal.parameter(sent)
        if name is None:
            return False
        parameter, other = sent[name], "max_completion_tokens"
        setting = f"engine.parameters.{parameter}"
        if name == "max_tokens" and other in refusal.words:
            self._names[parameter] = other
            text = "%s takes %s and not %s: sent so (set %s=%s to say it beforehand)"
            where = self.settings.base_url
            logging.getLogger("klear").warning(text, where, other, name, setting, other)
            return True
        if parameter in ("stream", "stream_options"):
            self._names[parameter] = OMIT
            return True
        if self._answered:
            return False
        most = self.sampling.max_tokens
        if parameter != "max_tokens":
            cure = f"set {setting}={OMIT}, and the endpoint's own value counts"
        elif (context := refusal.context) is not None:
            if context > most:
                return False  # this prompt is too long
            cure = f"prompt and answer have {context:,} tokens: set sampling.max_tokens below that"
        elif limit := refusal.limit_below(most):
            cure = f"set sampling.max_tokens={limit}"
        else:
            cure = f"set sampling.max_tokens lower, or {setting}=<the name it has there>"
        raise EngineError(f"{self.settings.base_url} refuses {name}: {reason}; {cure}")

    async def _send(self, client: openai.AsyncOpenAI, request: Request, ticket: Ticket) -> Reply:
        """One attempt, read to its end: server-sent events, or one JSON body where the server does
        not stream. The package's own parser of events makes a pydantic object of each token."""
        reply = Reply()

        def hear(data: bytes | str) -> None:
            had = reply.tokens
            reply.add(data)
            self._heard += 1
            if not self._gate.holding:
                self._flow.tokens += reply.tokens - had

        create = client.chat.completions.with_streaming_response.create
        async with create(**self._body(request)) as response:
            ticket.accept()
            began = time.monotonic()
            async with asyncio.timeout(self.settings.runtime.request_timeout_s):
                if "event-stream" not in response.headers.get("content-type", ""):
                    hear(await response.read())
                    return reply
                async for line in event_lines(response.iter_bytes()):
                    data = line.removeprefix(b"data:").strip()
                    if line.startswith(b"data:") and data != b"[DONE]":
                        hear(data)
            self._seconds += time.monotonic() - began
            self._tokens += reply.tokens
        return reply

    def _values(self, request: Request | None = None) -> dict[Parameter, Any]:
        """The parameters that are sent, under our names."""
        s, streams = self.sampling, self._names.get("stream") != OMIT
        values: dict[Parameter, Any] = {
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
            "seed": request.seed if request else 0,
            "top_k": s.top_k,
            "repetition_penalty": s.repetition_penalty,
            "stream": True,  # gateways cut silent connections
            "stream_options": {"include_usage": True} if streams else None,
        }
        return {n: v for n, v in values.items() if v is not None and self._names.get(n) != OMIT}

    def _body(self, request: Request) -> Any:
        """What a request says, as arguments of the client."""
        extra = {self._names.get(n, n): v for n, v in self._values(request).items()}
        if kwargs := self.settings.chat_template_kwargs:  # vLLM's and SGLang's name
            extra["chat_template_kwargs"] = kwargs
        messages = [{"role": "user", "content": request.prompt}]
        return {"model": self.settings.model, "messages": messages, "extra_body": extra}

    def _take(self, request: Request, reply: Reply, broken: int) -> Sample:
        """The sample of a reply, the first after `broken` ones; raises BrokenReply."""
        finish, s = reply.finish(), self.settings
        self._check_name(reply.model, broken)
        text = reply.text(s)
        if tags := foreign_tags(text):
            raise EngineError(f"{s.base_url}: {name_tags(s.model, tags)}")
        if not (reply.prompt_tokens or self._answered):
            note = "%s reports no token counts: chunks count as tokens, and costs are too low"
            logging.getLogger("klear").warning(note, s.base_url)
        self._answered += 1
        self._failed_in_a_row = 0
        self._note(reply)
        return request.answered(s.model, text, finish, reply.prompt_tokens, reply.tokens)

    def _note(self, reply: Reply) -> None:
        """Keep what the server calls itself, each name once."""
        row = {"model": reply.model, "system_fingerprint": reply.fingerprint}
        if self.seen_in and (text := json.dumps(row)) not in self._seen:
            self._seen.add(text)
            with suppress(OSError), self.seen_in.open("a") as file:  # a full disk ends it elsewhere
                at = datetime.now(UTC).isoformat(timespec="seconds")
                file.write(json.dumps({"at": at, **row}) + "\n")

    def _check_name(self, name: str, broken: int) -> None:
        """Raise BrokenReply when another model answered: a gateway may route a request elsewhere. A
        name within the other is the same, unless it is another size: `gpt-4o` answers as
        `gpt-4o-2024-08-06`, and not as `gpt-4o-mini`. Raises EngineError where nothing else came,
        twice."""
        s = self.settings
        expected, actual = (n.rpartition("/")[2].lower() for n in (s.served_model or s.model, name))
        differ = set(re.findall(r"[a-z]+", expected)) ^ set(re.findall(r"[a-z]+", actual))
        other = actual not in expected and expected not in actual
        if actual and (other or differ & SIZES):
            reason = f"answered by another model ({name[:60]})"
            if broken and not self._answered:
                raise EngineError(f"{s.base_url}: {reason}: if it is the same, set served_model")
            raise BrokenReply(reason)

    def _count_failure(self, reason: str) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= MOST_FAILURES:
            failed = f"{self._failed_in_a_row} requests in a row failed, the last with {reason}"
            kept = f"{self._answered} were answered; finished answers are kept"
            raise EngineError(f"{self.settings.base_url}: {failed}; {kept}")

    def _fatal(self, status: int, words: str) -> EngineError:
        s, hint = self.settings, "base_url usually ends in /v1"
        if status == 404:
            with suppress(EngineError):
                hint = f"it serves: {', '.join(served_models(s.base_url, self._key)[:8])}"
        elif s.api_key_block:
            hint = f"the key is in the Prefect Secret block {s.api_key_block}"
        else:
            name = s.api_key_env or "(none is named)"
            hint = f"the key is in the environment variable {name}"
        what = f"{FATAL[status]} (HTTP {status}) by {s.base_url} for model {s.model}"
        return EngineError(f"{what}; {hint}; it says: {words}")


def served_models(base_url: str, key: str = "") -> list[str]:
    """Their names, sorted. Raises EngineError in one line that holds no key."""
    return sorted(entry["id"] for entry in _listed(base_url, key)[0])


def described(base_url: str, model: str, key: str = "") -> dict[str, Any]:
    """What the server's list says of a model, less its clock's; maybe empty. Raises EngineError."""
    entries, date = _listed(base_url, key, or_none=True)
    entry = next((e for e in entries if e["id"] == model), {})
    facts = {name: entry[name] for name in DESCRIBES if entry.get(name) is not None}
    if isinstance(created := facts.get("created"), int) and abs(date - created) < CLOCK_S:
        del facts["created"]
    return facts


def _listed(base_url: str, key: str, or_none: bool = False) -> tuple[list[dict[str, Any]], float]:
    """The entries of /models, and when they were sent; `or_none`: none where it has none."""
    try:
        with openai.OpenAI(
            api_key=key or NO_KEY, base_url=base_url, timeout=LIST_TIMEOUT_S, max_retries=1
        ) as client:
            raw = client.models.with_raw_response.list()
            date = raw.headers.get("date", "")
            listed = json.loads(raw.http_response.text)
            rows = listed if isinstance(listed, list) else listed.get("data") or listed["models"]
            entries = [{**row, "id": row.get("id") or row["name"]} for row in rows]
            now = datetime.now(UTC)
            with suppress(ValueError):
                now = parsedate_to_datetime(date)
            return [e for e in entries if isinstance(e["id"], str)], now.timestamp()
    except openai.APIStatusError as error:
        if or_none and error.status_code < 500:
            return [], 0.0
        hints = {**FATAL, 404: "no such URL; base_url usually ends in /v1"}
        why = f"HTTP {error.status_code} {hints.get(error.status_code, '')}".strip()
    except openai.APIError as error:
        why = str(error.__cause__ or type(error).__name__)
    except (ValueError, TypeError, AttributeError, KeyError):
        if or_none:
            return [], 0.0
        why = "its answer has another form"
    raise EngineError(f"{base_url} does not say which models it serves: {why}") from None


async def event_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines of an event stream, which end at a newline alone: httpx would cut the JSON in them at
    U+2028 and the like, too."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    yield rest
