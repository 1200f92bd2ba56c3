"""One answer of an endpoint as it comes in: `content` is a text, null or a list of parts; thinking
comes in it, or in `reasoning_content` (DeepSeek, SGLang, Ark) or `reasoning` (vLLM, OpenRouter)."""

import json
from dataclasses import dataclass, field
from typing import Any

from ...configs.settings.engines import EngineSettings
from ...eval.answers import THINK_CLOSE, THINK_OPEN, writable
from ...eval.records import FinishReason
from ...eval.thinking import parts_of, with_think_tags
from .refusals import read_refusal

INTERRUPTED = ("insufficient_system_resource", "abort", "error")  # DeepSeek, vLLM, SGLang
FINISHES: dict[str, FinishReason] = {
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), "length"),
    **dict.fromkeys(("content_filter", "sensitive", "safety"), "refused"),
}


class BrokenReply(Exception):
    """The reply cannot be used, through no fault of the request: ask again."""


@dataclass
class Reply:
    """One answer as it comes in. It counts only when the endpoint said how it ended."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    model: str = ""  # the name under which the endpoint answered
    ended: str = ""  # the endpoint's finish reason; empty: none was given
    refusal: bool = False
    prompt_tokens: int = 0
    fingerprint: str = ""
    tokens: int = 0
    """Of the answer; chunks with text, which is about the same, until the endpoint says it."""

    def add(self, text: bytes | str) -> None:
        """Take in one chunk of a stream, or the whole body; raises BrokenReply."""
        try:
            data: dict[str, Any] = json.loads(text)
            if data.get("error") and not data.get("choices"):
                raise BrokenReply(f"an error in the reply: {read_refusal(text).words}")
            self.model = self.model or str(data.get("model") or "")
            self.fingerprint = self.fingerprint or str(data.get("system_fingerprint") or "")
            for choice in data["choices"][:1]:
                message = choice.get("delta") or choice.get("message") or {}
                content, thinking = parts_of(message.get("content"))
                apart = message.get("reasoning_content") or message.get("reasoning")
                reasoning = "".join(parts_of(apart)) or thinking
                self.tokens += bool(content or reasoning)
                self.content.append(content)
                self.reasoning.append(reasoning)
                self.refusal |= bool(message.get("refusal"))
                self.ended = choice.get("finish_reason") or self.ended
            if usage := data.get("usage"):
                self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
                thinking_too = int(usage.get("total_tokens") or 0) - self.prompt_tokens
                reported = int(usage.get("completion_tokens") or self.tokens)
                self.tokens = max(reported, thinking_too)  # xAI leaves it out of completion
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BrokenReply("garbled JSON in the reply") from error

    def finish(self) -> FinishReason:
        """How the answer ended; raises BrokenReply when it did not."""
        if not self.ended:
            raise BrokenReply("the stream was cut")
        if self.ended in INTERRUPTED:
            raise BrokenReply(f"the server gave up ({self.ended})")
        if self.refusal:
            return "refused"
        reason = FINISHES.get(self.ended.lower(), "stop")
        return "empty" if reason == "stop" and not "".join(self.content).strip() else reason

    def text(self, settings: EngineSettings) -> str:
        """What the judge sees: reasoning that is reported apart, or stands in the `think_tags` of
        the settings, in think tags; unclosed where it was cut before any answer. An opening tag
        that the template wrote is put back."""
        content, reasoning = (writable("".join(t)) for t in (self.content, self.reasoning))
        if reasoning.strip():
            ended = content.strip() or self.finish() != "length"
            end = f"\n{THINK_CLOSE}\n\n{content}" if ended else ""
            return f"{THINK_OPEN}\n{reasoning.strip()}{end}"
        if settings.think_tags:
            content = with_think_tags(content, settings.think_tags)
        for tag in settings.solution_tags or ():
            content = content.replace(tag, "")
        prefill = settings.think_prefill
        if content and prefill and not content.startswith(prefill.strip()):
            return prefill + content
        if not prefill and THINK_CLOSE in content and THINK_OPEN not in content:
            return f"{THINK_OPEN}\n{content}"
        return content
