"""What an endpoint said: server-sent events or one JSON body, read to the end or refused.

An answer counts only when the endpoint said how it ended. A stream that stops before that was
cut, whatever closed it, and its text is worth nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from eval.records import FinishReason

INTERRUPTED = ("insufficient_system_resource", "abort", "error")  # DeepSeek, vLLM, SGLang
FINISHES: dict[str, FinishReason] = {"length": "length", "content_filter": "refused"}
OPENED, CLOSED = "<think>", "</think>"
AFTER_THE_END_S = 1.0
T = TypeVar("T")


class BrokenReply(ValueError):
    """The reply cannot be used, through no fault of the request: ask again."""


@dataclass
class Reply:
    """One answer as it comes in."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    model: str = ""
    """The name under which the endpoint answered."""
    ended: str = ""
    """The endpoint's finish reason; empty: none was given."""
    refusal: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    pieces: int = 0
    """Chunks with text: about the tokens of a stream that does not report them."""

    def add(self, data: Any) -> None:
        """Take in one chunk of a stream, or the whole body; raises BrokenReply."""
        if not isinstance(data, dict):
            raise BrokenReply("no JSON object")
        if data.get("error"):
            raise BrokenReply("an error inside of the reply")
        self.model = self.model or str(data.get("model") or "")
        usage = data.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self.completion_tokens = int(usage.get("completion_tokens") or 0)
        choices = data.get("choices")
        if not isinstance(choices, list):
            raise BrokenReply("no choices")
        for choice in choices[:1]:
            message = choice.get("delta") or choice.get("message") or {}
            self._add_message(message)
            self.ended = choice.get("finish_reason") or self.ended

    def _add_message(self, message: dict[str, Any]) -> None:
        content = message.get("content")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        self.pieces += bool(content or reasoning)
        if content:
            self.content.append(content)
        if reasoning:
            self.reasoning.append(reasoning)
        self.refusal |= bool(message.get("refusal"))

    def finish(self) -> FinishReason:
        """How the answer ended; raises BrokenReply when it did not."""
        if not self.ended:
            raise BrokenReply("the stream was cut")
        if self.ended in INTERRUPTED:
            raise BrokenReply(f"the server gave up ({self.ended})")
        found = FINISHES.get(self.ended, "stop")
        if self.refusal:
            return "refused"
        return "empty" if found == "stop" and not "".join(self.content).strip() else found

    @property
    def tokens(self) -> int:
        return self.completion_tokens or self.pieces


def parse(text: bytes | str) -> Any:
    """JSON, also with lone surrogates; raises BrokenReply."""
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenReply("garbled JSON") from error


async def read_reply(response: Any) -> Reply:
    """Read an open response of the openai package: a stream, or a server that does not stream.

    Raises BrokenReply, and TimeoutError after too long a silence.
    """
    reply = Reply()
    if "event-stream" not in response.headers.get("content-type", ""):
        body = parse(await _received(response.read()))
        reply.add(body)
        if not body["choices"]:
            raise BrokenReply("no choices")
        reply.ended = reply.ended or "stop"
        reply.pieces = 0
        return reply
    lines = aiter(response.iter_lines())
    while (line := await _received(anext(lines, None))) is not None:
        if not line.startswith("data:"):
            continue  # comments keep the connection alive
        data = line[5:].strip()
        if data == "[DONE]":
            await _to_the_end(lines)
            break
        if data:
            reply.add(parse(data))
    return reply


async def _to_the_end(lines: AsyncIterator[str]) -> None:
    """Read what follows the last event, usually nothing: only a body that was read to its end
    leaves its connection, and the handshake it has cost, to the next request."""
    with suppress(TimeoutError, BrokenReply):
        async with asyncio.timeout(AFTER_THE_END_S):
            while await _received(anext(lines, None)) is not None:
                pass


async def _received(coming: Awaitable[T]) -> T:
    """What comes over the wire. The package passes the errors of its transport on as they are,
    and which transport that is depends on its version."""
    try:
        return await coming
    except Exception as error:
        if "Timeout" in type(error).__name__:
            raise TimeoutError from error
        raise BrokenReply("the connection was cut") from error


def answer_text(reply: Reply, think_prefill: str) -> str:
    """The text the judge sees: reasoning that the endpoint reports apart is put into think tags.

    Reasoning that was cut before any answer stays unclosed. Where the template wrote the opening
    tag, so that the text only closes it, the tag is put back.
    """
    content, reasoning = _clean(reply.content), _clean(reply.reasoning)
    if reasoning:
        closed = f"\n{CLOSED}\n\n" if content.strip() else ""
        return f"{OPENED}\n{reasoning.strip()}{closed}{content}"
    if content and think_prefill and not content.startswith(think_prefill.strip()):
        return think_prefill + content
    if not think_prefill and CLOSED in content and OPENED not in content:
        return f"{OPENED}\n{content}"
    return content


def _clean(pieces: list[str]) -> str:
    """One text; halves of a surrogate pair that came in two pieces are joined."""
    text = "".join(pieces)
    if text.isascii():
        return text
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return joined.encode("utf-8", "replace").decode()
