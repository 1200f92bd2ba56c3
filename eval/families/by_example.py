"""Program by example: the code family of the tiny profile.

    Use a, b, 8, *, +. a=6 b=9 f=62 a=5 b=3 f=23

Two values of a hidden function of `a`, `b`, one constant and the two named operators (+ − × max
min); the answer is a program that reads `a b` and prints f, judged on sixteen hidden tests.

    <think>
    (a+8)*b: 6+8=14*9=126 ?62 high
    (a*b)+8: 6*9=54+8=62 ?62 yes
    5*3=15+8=23 ?23 yes
    </think>
    ```python
    a,b=map(int,input().split())
    print((a*b)+8)
    ```
"""

import random
import re
from collections.abc import Iterator
from functools import lru_cache

from ...configs.settings.engines import EngineSettings
from ..records import Problem, StdinCase, TestSuite, normalise_prompt
from . import countdown
from .countdown import Form, Side, different, verdict

OPERATORS = ("+", "*", "-", "max", "min")
LARGEST_NUMBER = 9  # of a, b and the constant, unless asked otherwise
EXAMPLES, HIDDEN_TESTS, FEWEST_TESTS = 2, 16, 4
_PROMPT = re.compile(r"use a, b, (\d+), (\S+), (\S+)\.((?: a=\d+ b=\d+ f=\d+)+)")
_EXAMPLE = re.compile(r"a=(\d+) b=(\d+) f=(\d+)")


@lru_cache(maxsize=64)
def forms(constant: int) -> tuple[Form, ...]:
    """Every function of a, b and `constant` in this family."""
    c = str(constant)
    return tuple(
        Form(p, op1, q, op2, z, flipped)
        for z, x, y in (("a", "b", c), ("b", "a", c), (c, "a", "b"))
        for op1 in OPERATORS
        for p, q in (((x, y), (y, x)) if op1 == "-" else ((x, y),))
        for op2 in "+*-"
        for flipped in ((False, True) if op2 == "-" else (False,))
    )


@lru_cache(maxsize=2048)
def _inputs(form: Form, largest: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Where the form is defined, and where a, b and the constant differ; empty for a dull form."""
    numbers = range(1, largest + 1)
    inputs = tuple((a, b) for a in numbers for b in numbers if form.at(a, b).in_range)
    constants = {form.x, form.y, form.z}
    telling = tuple((a, b) for a, b in inputs if a != b and not {str(a), str(b)} & constants)
    dull = len({form.at(a, b).value for a, b in inputs}) < 4
    if dull or len(inputs) < HIDDEN_TESTS + 2 * EXAMPLES or len(telling) < EXAMPLES:
        return (), ()
    return inputs, telling


def generate(
    rng: random.Random, size: int, split: Side, *, largest: int = LARGEST_NUMBER,
    few_tests_share: float = 0.0,
) -> Iterator[Problem]:  # fmt: skip
    """`size` different problems of one side, numbers up to `largest`, with 16 hidden tests, or, a
    share `few_tests_share`, 4 to 15. A longer run begins with a shorter one's. Raises ValueError.
    """

    def draw() -> Problem | None:
        constant = rng.randint(2, largest)
        form = rng.choice(forms(constant))
        inputs, telling = _inputs(form, largest)
        if not inputs:
            return None
        shown = rng.sample(telling, EXAMPLES)
        examples = [(a, b, form.at(a, b).value) for a, b in shown]
        if countdown.side_of(f"by_example {constant} {sorted(examples)}") != split:
            return None
        few = rng.random() < few_tests_share
        count = rng.randint(FEWEST_TESTS, HIDDEN_TESTS - 1) if few else HIDDEN_TESTS
        hidden = rng.sample([ab for ab in inputs if ab not in shown], count)
        tests = ((f"{a} {b}\n", f"{form.at(a, b).value}\n") for a, b in hidden)
        cases = tuple(StdinCase(input=i, output=o) for i, o in tests)
        first, second = sorted((form.op1, form.op2))
        rows = "".join(f" a={a} b={b} f={f}" for a, b, f in examples)
        prompt = f"Use a, b, {constant}, {first}, {second}.{rows}"
        suite = TestSuite(kind="stdin", cases=cases, time_limit_s=2.0, memory_mb=256)
        return Problem(domain="code", prompt=prompt, tests=suite, source="by_example")

    return different(draw, size, f"by_example has fewer than size={size} {split} problems")


def parse(prompt: str) -> tuple[int, tuple[str, str], list[tuple[int, ...]]] | None:
    """Constant, operators, examples (a, b, f) of a prompt of this family; None for another's."""
    match = _PROMPT.fullmatch(normalise_prompt(prompt))
    if match is None:
        return None
    constant, first, second, examples = match.groups()
    pairs = [tuple(map(int, example)) for example in _EXAMPLE.findall(examples)]
    return int(constant), (first, second), pairs


def teach(rng: random.Random, prompt: str, settings: EngineSettings) -> str:
    """The scripted teacher's answer, worked out from the prompt alone; may be wrong. The settings
    mean what they mean in `countdown.teach`. A slip flips the verdict on one example."""
    task = parse(prompt)
    if task is None:
        raise ValueError(f"no by_example prompt: {prompt[:80]!r}")
    constant, operators, examples = task
    a, b, f = examples[0]
    named = [f for f in forms(constant) if sorted((f.op1, f.op2)) == sorted(operators)]
    defined = [form for form in named if form.at(a, b).in_range]
    order = countdown.closest_first(rng, defined, lambda form: form.at(a, b).value - f, settings)

    def attempt(form: Form) -> tuple[str, bool]:
        """The lines on one candidate, and whether the teacher believes that all examples fit."""
        lines = f"{form.expression()}:"
        for n, (a, b, f) in enumerate(examples):
            value = form.at(a, b)
            if not value.in_range:
                return lines, False
            seen = value.value
            if rng.random() < settings.error_rate:
                seen = f if seen != f else f + rng.choice((-1, 1))
            lines += f"{chr(10) if n else ' '}{value.working(value.value)} ?{f} {verdict(seen, f)}"
            if seen != f:
                return lines, False
        return lines, True

    brief = settings.brief_rate if settings.code_brief_rate is None else settings.code_brief_rate
    if rng.random() < brief:
        thought, form = order[0].expression(), order[0]
    else:
        thought, form = countdown.search(rng, order, attempt, settings)
    program = f"a,b=map(int,input().split())\nprint({form.expression()})"
    return f"<think>\n{thought}\n</think>\n```python\n{program}\n```"
