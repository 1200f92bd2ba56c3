r"""Math judging in a worker: `run` is what the judge asks for.

math-verify's own time limits are off: they are alarms that the main loop of C code never sees. The
worker has a memory limit and is killed from outside.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import math_verify

from eval.math_answers.equality import by_math_verify, same, value_of
from eval.math_answers.forms import equation_sides, form_of
from eval.math_answers.reading import TooCostly, Unreadable, parse
from eval.math_answers.spelling import Spelled, spell
from eval.math_answers.values import check_digits
from eval.math_answers.verify import MathVerdict, other_angle
from eval.math_answers.words import contradicts, unit_ratio

_CPU_S, _CPU_OF_GOLD_S = 5.0, 2.0


class OutOfTime(BaseException):
    """The CPU time is used up. No Exception, which the code that is interrupted might catch."""


@contextmanager
def cpu_seconds(most: float) -> Iterator[None]:
    """Raise OutOfTime when the block has used this many CPU seconds; in the main thread only.

    The alarm is seen between two steps of Python. A single step that takes for ever is ended from
    outside, with its process.
    """

    def end(_: int, __: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run(gold: str, answer: str, plain: bool = False) -> MathVerdict:
    """The verdict on one answer; IE when the gold cannot be read.

    With `plain`, that of math-verify's plain call, where `answer` is a whole text.
    """
    started = time.perf_counter()
    if plain:
        verdict = _plain_verdict(gold, answer)
    else:
        try:
            with cpu_seconds(_CPU_S):
                verdict = _verdict(gold, answer)
        except OutOfTime:
            verdict = _blamed(gold, f"it takes over {_CPU_S:g} s of CPU time")
        except (MemoryError, OSError, ImportError):
            raise  # the machine's, and nobody's wrong answer
        except Exception as error:  # sympy's own, of every kind
            verdict = _blamed(gold, f"{type(error).__name__} in sympy")
    return replace(verdict, seconds=time.perf_counter() - started)


def _plain_verdict(gold: str, text: str) -> MathVerdict:
    """What `verify(parse(gold), parse(text))` says, with the alarms of its defaults."""
    expected = math_verify.parse(gold) or math_verify.parse(f"${gold}$")
    if not expected:
        return MathVerdict("IE", f"math-verify cannot read the gold answer: {gold[:80]}")
    same = math_verify.verify(expected, math_verify.parse(text))
    return MathVerdict("AC" if same else "WA", "by math-verify")


def _verdict(gold: str, answer: str) -> MathVerdict:
    try:
        equal = _same_spelled(spell(gold), spell(answer))
        return MathVerdict("AC" if equal else "WA", "" if equal else "not equal to the gold")
    except TooCostly as error:
        return MathVerdict("IE" if _is_costly(gold) else "WA", f"not evaluated: {error}")
    except Unreadable:
        return _second_opinion(gold, answer)


def _blamed(gold: str, why: str) -> MathVerdict:
    """The answer is to blame, unless its gold cannot be compared with a plain number either."""
    try:
        with cpu_seconds(_CPU_OF_GOLD_S):
            beside_zero = _verdict(gold, "0")
    except (Exception, OutOfTime):
        return MathVerdict("IE", f"the gold answer cannot be evaluated: {gold[:80]}")
    return replace(beside_zero, verdict="WA", reason=f"not evaluated: {why}")


def _is_costly(gold: str) -> bool:
    """Whether it is the gold that cannot be evaluated: a data error, nobody's wrong answer."""
    try:
        for piece in form_of(spell(gold).body).pieces:
            check_digits(parse((equation_sides(piece) or [piece])[-1]))
    except TooCostly:
        return True
    except Unreadable:
        return False
    return False


def _second_opinion(gold: str, answer: str) -> MathVerdict:
    """math-verify on a gold that we cannot read; unscored when it cannot either."""
    try:
        expected, given = spell(gold).body, spell(answer).body
        equal = by_math_verify(expected, given) and not contradicts(given, expected)
    except Unreadable:
        return MathVerdict("IE", f"the gold answer cannot be read: {gold[:80]}")
    except TooCostly as error:
        return MathVerdict("WA", f"not evaluated: {error}")
    return MathVerdict("AC" if equal else "WA", "by math-verify")


def _same_spelled(gold: Spelled, answer: Spelled) -> bool:
    """Words come last: a gold that cannot be read must show, whatever the answer says."""
    return _same_bodies(gold, answer) and not contradicts(answer.body, gold.body)


def _same_bodies(gold: Spelled, answer: Spelled) -> bool:
    if gold.unit and answer.unit and gold.unit != answer.unit:
        ratio = unit_ratio(answer.unit, gold.unit)
        scale = f"{ratio.numerator}}}{{{ratio.denominator}" if ratio else ""
        return bool(ratio) and same(gold.body, rf"\frac{{{scale}}}\cdot({value_of(answer.body)})")
    if answer.listed and form_of(gold.body).kind != "scalar":
        return same(gold.body, answer.listed)
    if not other_angle(gold, answer) and same(gold.body, answer.body):
        return True
    gold, answer = (replace(side, body=value_of(side.body)) for side in (gold, answer))
    if gold.percent != answer.percent:
        scaled = [rf"\frac{{{s.body}}}{{100}}" if s.percent else s.body for s in (gold, answer)]
        return same(*scaled)
    if gold.degrees != answer.degrees:
        turned = [rf"\frac{{{s.body}\pi}}{{180}}" if s.degrees else s.body for s in (gold, answer)]
        return same(*turned)
    return False
