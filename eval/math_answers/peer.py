"""math-verify: asked about golds that we cannot read, and where its own rules are wanted."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import math_verify

from eval.math_answers.reading import Unreadable, parse
from eval.math_answers.verify import MathVerdict

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off


def plain_call(gold: str, text: str, started: float) -> MathVerdict:
    """What `verify(parse(gold), parse(text))` says, with the alarms of its defaults."""
    expected = math_verify.parse(gold) or math_verify.parse(f"${gold}$")
    if not expected:
        return MathVerdict("IE", f"math-verify cannot read the gold answer: {gold[:80]}")
    same = math_verify.verify(expected, math_verify.parse(text))
    return MathVerdict("AC" if same else "WA", "by math-verify", time.perf_counter() - started)


def by_math_verify(gold: str, answer: str) -> bool:
    """Its opinion on one answer. Raises Unreadable for the gold and TooCostly for the answer."""
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    read: Callable[[str], list] = lambda text: math_verify.parse(  # noqa: E731
        f"${text}$", config, parsing_timeout=0, raise_on_error=False
    )
    expected = [value for value in read(gold) if not isinstance(value, str)]
    if not expected:
        raise Unreadable(gold[:80])
    refuse(answer)
    return math_verify.verify(
        expected, read(answer), numeric_precision=200, timeout_seconds=0, raise_on_error=False
    )


def refuse(answer: str) -> None:
    """Raise TooCostly for a formula that math-verify would evaluate for ever."""
    with suppress(Unreadable):
        parse(answer)
