"""Where thinking ends and the answer begins, in the forms of other models: their tags become
<think>…</think>, and a message that is a list of parts becomes two texts."""

import json
import re
from typing import Any

from .answers import THINK_CLOSE, THINK_OPEN

Tags = tuple[str, str]
HARMONY = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
BARE_HARMONY = ("analysis", "assistantfinal")  # decoded without its special tokens
KNOWN: tuple[Tags, ...] = (
    ("<seed:think>", "</seed:think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    HARMONY,
    BARE_HARMONY,
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("◁think▷", "◁/think▷"),
    ("<longcat_think>", "</longcat_think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
)
PLAIN = re.compile(r"</?\w+>")  # tags that an answer may hold for reasons of its own
_BEGIN = re.compile(r"\s*(?:<\|start\|>assistant)?\s*")
_HARMONY_TOKENS = re.compile(r"<\|(?:end|return|call)\|>(?:\s*<\|start\|>assistant)?")
_BARE_ANALYSIS = re.compile(r"analysis(?=[^\sa-z\W])")


def foreign_tags(text: str) -> Tags | None:
    """The tags of another family in which a text without a think block thinks; None: it does not.
    They open it, or their end stands in it, where a template wrote the beginning."""
    if THINK_OPEN in text or THINK_CLOSE in text:
        return None
    begin = _BEGIN.match(text)
    start = begin.end() if begin else 0
    for opened, closed in KNOWN:
        if (opened, closed) == BARE_HARMONY:
            if _BARE_ANALYSIS.match(text, start):
                return BARE_HARMONY
        elif text.startswith(opened, start) or (not PLAIN.fullmatch(closed) and closed in text):
            return opened, closed
    return None


def name_tags(model: str, tags: Tags) -> str:
    """What to set where `model` thinks in `tags`."""
    pair = json.dumps(tags, ensure_ascii=False)
    wrong = "which would be judged as its answer"
    return f"{model} thinks in {tags[0]}…{tags[1]}, {wrong}: set engine.think_tags='{pair}'"


def with_think_tags(text: str, tags: Tags) -> str:
    """The text with our tags in the place of `tags`."""
    opened, closed = tags
    if opened.isalpha():  # words, which may stand anywhere: the first, and the last end
        body = text.lstrip()
        thinking, end, answer = body.removeprefix(opened).rpartition(closed)
        if not body.startswith(opened):
            return text
        thinking, end = (thinking, f"\n{THINK_CLOSE}\n\n") if end else (answer, "")
        return f"{THINK_OPEN}\n{thinking}{end}{answer if end else ''}"
    if tags == HARMONY:
        text = _HARMONY_TOKENS.sub("", text.lstrip().removeprefix("<|start|>assistant"))
        thinking, end, answer = text.rpartition(closed)
        text = f"{(thinking if end else answer).replace(opened, '')}{end}{answer if end else ''}"
        return f"{THINK_OPEN}\n{text}".replace(closed, f"\n{THINK_CLOSE}\n\n")
    return text.replace(opened, THINK_OPEN).replace(closed, THINK_CLOSE)


def parts_of(content: Any) -> tuple[str, str]:
    """(answer, thinking) of a message's content: a text, nothing, or parts. Raises TypeError."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if isinstance(content, list):
        pairs = [parts_of(part) for part in content]
        return "".join(a for a, _ in pairs), "".join(t for _, t in pairs)
    if not isinstance(content, dict):
        raise TypeError(f"content is a {type(content).__name__}")
    kind = str(content.get("type", ""))
    names = ("text", "thinking", "reasoning", "reasoning_content", "content", "summary")
    name = next((n for n in names if content.get(n)), "")
    answer, thinking = parts_of(content.get(name) if name else None)
    if "think" in kind or "reason" in kind or name in ("thinking", "reasoning", "summary"):
        return "", thinking + answer
    return answer, thinking
