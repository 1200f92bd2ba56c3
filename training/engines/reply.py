"""One answer of an endpoint as it comes in: `content` is a text, null or a list of parts; thinking
comes in it, or in `reasoning_content` (DeepSeek, SGLang, Ark) or `reasoning` (vLLM, OpenRouter)."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ...configs.settings.engines import EngineSettings
from ...eval.answers import THINK_CLOSE, THINK_OPEN, after_think, writable
from ...eval.records import FinishReason
from ...eval.thinking import parts_of, with_think_tags
from .refusals import read_refusal

# What servers call the end of an answer, by its words: the first that fits.
FINISHES: tuple[tuple[FinishReason | None, re.Pattern[str]], ...] = (
    (None, re.compile("error|abort|cancel|time|interrupt|insufficient|fail")),
    (
        "refused",
        re.compile("filter|safety|sensitiv|recitation|prohibit|block|spii|guardrail|refus"),
    ),
    ("length", re.compile("length|max|limit|window|incomplete|not_finished|repetition")),
    ("stop", re.compile("stop|eos|end|complete|finish|done|tool|function")),
)
APART = ("reasoning_content", "reasoning", "reasoning_details", "thinking")


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
            choices = data.get("choices") or []
            error = next((part for part in (data, *choices) if part.get("error")), None)
            if error or (not choices and ("detail" in data or data.get("object") == "error")):
                words = read_refusal(json.dumps(error or data)).words
                raise BrokenReply(f"an error in the reply: {words}")
            self.model = self.model or str(data.get("model") or "")
            self.fingerprint = self.fingerprint or str(data.get("system_fingerprint") or "")
            for choice in [c for c in choices if not c.get("index")][:1]:
                message = choice.get("delta") or {}
                if not message and not self.tokens:  # else the end of a stream that repeats it all
                    message = choice.get("message") or {"content": choice.get("text")}
                content, thinking = parts_of(message.get("content"))
                apart = next((v for name in APART if (v := message.get(name))), None)
                reasoning = "".join(parts_of(apart)) or thinking
                self.tokens += bool(content or reasoning)
                self.content.append(content)
                self.reasoning.append(reasoning)
                self.refusal |= bool(message.get("refusal"))
                self.ended = str(choice.get("finish_reason") or self.ended)
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
            raise BrokenReply("the stream was cut" if self.content else "a reply without choices")
        name = self.ended.lower()
        ends: list[FinishReason | None] = [f for f, words in FINISHES if words.search(name)]
        if not ends:
            raise BrokenReply(f"it does not say how it ended (finish_reason {self.ended!r})")
        end: FinishReason | None = ends[0]
        if end is None:
            raise BrokenReply(f"the server gave up ({self.ended})")
        if self.refusal:
            return "refused"
        return "empty" if end == "stop" and not "".join(self.content).strip() else end

    def text(self, settings: EngineSettings) -> str:
        """What the judge sees: reasoning that is reported apart, or stands in the `think_tags` of
        the settings, in think tags; unclosed where it was cut before any answer. An opening tag
        that the template wrote is put back."""
        content, reasoning = (writable("".join(t)) for t in (self.content, self.reasoning))
        if reasoning.strip():
            if (answer := after_think(content)) is not None:  # it stands there again
                content = answer.lstrip()
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
