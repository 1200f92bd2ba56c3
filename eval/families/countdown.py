"""Make the target: the math family of the tiny profile.

    Make 10 from 7, 9, 8.

Three numbers, + − ×, each number once; the answer is an expression in `\\boxed{}`. The scripted
teacher searches aloud, one candidate a line, and slips, gives up, or answers without searching.

    <think>
    9*8=72-7=65 ?10 high
    9+8=17-7=10 ?10 yes
    </think>
    \\boxed{(9+8)-7}
"""

import ast
import hashlib
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from ...configs.settings.engines import EngineSettings
from ..records import Judgement, Problem, normalise_prompt

Side = Literal["train", "test"]
TEST_SHARE = 0.15
SMALLEST, LARGEST_VALUE = 2, 99
LARGEST_NUMBER = 10  # unless asked otherwise
SLIPS = (-2, -1, 1, 2, 10)
MISSES_BEFORE_GIVING_UP = 20_000
OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "max": max, "min": min}
_PROMPT = re.compile(r"make (\d+) from (\d+), (\d+), (\d+)\.")
_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|\$|~"), ""),
    (re.compile(r"\\times|\\cdot|\\ast|[×·\N{ASTERISK OPERATOR}]"), "*"),
    (re.compile(r"\\div|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
)
_FRACTION_OF = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_ALLOWED = re.compile(r"[-+*/()\d\s]*", re.ASCII)
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")  # Python reads no 07
_MOST_CHARACTERS = 2000
_BY_NODE = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
            ast.Div: operator.truediv, ast.UAdd: operator.pos, ast.USub: operator.neg}  # fmt: skip


def side_of(key: str) -> Side:
    """Side of the problem whose canonical text is `key`: about 15 % of all keys are `test`."""
    digest = hashlib.sha256(key.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64 else "train"


class Form(NamedTuple):
    """`(x op1 y) op2 z`, or `z op2 (x op1 y)` when `flipped`; x, y, z are numbers, `a` or `b`."""

    x: str
    op1: str
    y: str
    op2: str
    z: str
    flipped: bool

    def at(self, a: int, b: int) -> "Form":
        """The same form with the numbers in place of `a` and `b`."""
        values = {"a": str(a), "b": str(b)}
        x, y, z = (values.get(term, term) for term in (self.x, self.y, self.z))
        return Form(x, self.op1, y, self.op2, z, self.flipped)

    def values(self) -> tuple[int, int]:
        """The inner and the whole result, of a form of numbers."""
        inner = OPERATIONS[self.op1](int(self.x), int(self.y))
        pair = (int(self.z), inner) if self.flipped else (inner, int(self.z))
        return inner, OPERATIONS[self.op2](*pair)

    @property
    def value(self) -> int:
        return self.values()[1]

    @property
    def in_range(self) -> bool:
        """Whether both results lie in 0..99."""
        return all(0 <= value <= LARGEST_VALUE for value in self.values())

    def _inner(self) -> str:
        x, op, y = self.x, self.op1, self.y
        return f"{op}({x},{y})" if op in ("max", "min") else f"{x}{op}{y}"

    def expression(self) -> str:
        inner = self._inner() if self.op1 in ("max", "min") else f"({self._inner()})"
        return f"{self.z}{self.op2}{inner}" if self.flipped else f"{inner}{self.op2}{self.z}"

    def working(self, value: int) -> str:
        """The two steps of the evaluation, as the teacher writes them, ending in `value`."""
        inner = self.values()[0]
        rest = f",{self.z}{self.op2}{inner}" if self.flipped else f"{self.op2}{self.z}"
        return f"{self._inner()}={inner}{rest}={value}"


@lru_cache(maxsize=4096)
def candidates(numbers: tuple[int, int, int]) -> tuple[Form, ...]:
    """Every expression over the three numbers whose results all lie in 0..99."""
    forms: dict[Form, None] = {}
    for i, z in enumerate(numbers):
        first, second = (n for j, n in enumerate(numbers) if j != i)
        for op1 in "+*-":
            swap = op1 == "-" and first < second
            x, y = (second, first) if swap else (first, second)
            for op2 in "+*-":
                flipped = op2 == "-" and OPERATIONS[op1](x, y) < z
                form = Form(str(x), op1, str(y), op2, str(z), flipped)
                if form.in_range:
                    forms[form] = None
    return tuple(forms)


def generate(
    rng: random.Random, size: int, split: Side, *, largest: int = LARGEST_NUMBER,
    targets: tuple[int, int] = (1, LARGEST_VALUE),
) -> Iterator[Problem]:  # fmt: skip
    """`size` different problems of one side, numbers in 2..`largest`, targets within `targets`:
    small ones are easier. A longer run begins with a shorter one's. Raises ValueError for too few.
    """
    if not SMALLEST < largest <= LARGEST_VALUE:
        raise ValueError(f"countdown difficulty={largest}; use {SMALLEST + 1}..{LARGEST_VALUE}")

    def draw() -> Problem | None:
        numbers = sorted(rng.randint(SMALLEST, largest) for _ in range(3))
        target = rng.choice(candidates((numbers[0], numbers[1], numbers[2]))).value
        key = f"countdown {numbers} {target}"
        rng.shuffle(numbers)
        if not targets[0] <= target <= targets[1] or side_of(key) != split:
            return None
        prompt = f"Make {target} from {numbers[0]}, {numbers[1]}, {numbers[2]}."
        fields = {"answer": str(target), "numbers": tuple(numbers), "source": "countdown"}
        return Problem(domain="math", prompt=prompt, **fields)

    return different(draw, size, f"countdown has fewer than size={size} {split} problems")


def different(draw: Callable[[], Problem | None], size: int, failure: str) -> Iterator[Problem]:
    """`size` problems of `draw`, each prompt once; ValueError once it gives nothing new."""
    seen: set[str] = set()
    misses = 0
    while len(seen) < size:
        problem = draw()
        if problem is not None and problem.prompt not in seen:
            misses = 0
            seen.add(problem.prompt)
            yield problem
        elif (misses := misses + 1) > MISSES_BEFORE_GIVING_UP:
            raise ValueError(f"{failure}: found {len(seen)}; lower size or raise difficulty")


def parse(prompt: str) -> tuple[int, tuple[int, int, int]] | None:
    """Target and numbers of a prompt of this family in any case and spacing; None for others."""
    match = _PROMPT.fullmatch(normalise_prompt(prompt))
    if match is None:
        return None
    target, first, second, third = map(int, match.groups())
    return target, (first, second, third)


def teach(rng: random.Random, prompt: str, settings: EngineSettings) -> str:
    """The scripted teacher's answer from the prompt alone. `guidance` tries close values first,
    `error_rate`: a slip, `give_up_rate`: stopping, both a line; `brief_rate`: no search."""
    problem = parse(prompt)
    if problem is None:
        raise ValueError(f"no countdown prompt: {prompt[:80]!r}")
    target, numbers = problem
    order = closest_first(rng, candidates(numbers), lambda form: form.value - target, settings)

    def attempt(form: Form) -> tuple[str, bool]:
        value = form.value
        if rng.random() < settings.error_rate:
            value = max(0, value + rng.choice(SLIPS))
        return f"{form.working(value)} ?{target} {verdict(value, target)}", value == target

    if rng.random() < settings.brief_rate:
        thought, chosen = order[0].working(order[0].value), order[0]
    else:
        thought, chosen = search(rng, order, attempt, settings)
    return f"<think>\n{thought}\n</think>\n\\boxed{{{chosen.expression()}}}"


def verdict(value: int, target: int) -> str:
    return "yes" if value == target else "high" if value > target else "low"


def closest_first(
    rng: random.Random, forms: Iterable[Form], miss: Callable[[Form], int], settings: EngineSettings
) -> list[Form]:
    """A random order that prefers, by `guidance`, what misses the target by less."""
    weight = settings.guidance
    return sorted(forms, key=lambda form: rng.random() + weight * min(abs(miss(form)), 40) / 40)


def search(
    rng: random.Random, order: list[Form], attempt: Callable[[Form], tuple[str, bool]],
    settings: EngineSettings,
) -> tuple[str, Form]:  # fmt: skip
    """The teacher's lines, and the form it ends with: one that fits, or the one it gives up at."""
    lines: list[str] = []
    for form in order[: settings.max_lines]:
        line, fits = attempt(form)
        lines.append(line)
        if fits or rng.random() < settings.give_up_rate:
            return "\n".join(lines), form
    return "\n".join(lines), order[: settings.max_lines][-1]


def verify_countdown(answer: str, target: str, numbers: Sequence[int]) -> Judgement:
    """Whether `answer`, an expression or `expression = target`, uses every number once and equals
    `target` (IE: no number). Exact, and nothing is evaluated by Python or sympy.
    """
    try:
        goal = Fraction(target.strip())
    except (ValueError, ZeroDivisionError):
        return Judgement("IE", f"the target {target!r} is not a number")
    used: list[int] = []
    try:
        expression, equals, stated = _plain(answer).partition("=")
        value = _value(_parsed(expression), used)
        if equals and (_value(_parsed(stated), []) != goal or value != goal):
            raise ValueError("the stated equation does not hold")
    except (ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
        return Judgement("WA", f"not an expression: {error}")
    if Counter(used) != Counter(numbers):
        return Judgement("WA", "the numbers are not used exactly once each")
    if value != goal:
        return Judgement("WA", f"the value is {value}, not {goal}")
    return Judgement("AC", "")


def _plain(answer: str) -> str:
    if len(answer) > _MOST_CHARACTERS:
        raise ValueError("too long")
    for pattern, replacement in _LATEX:
        answer = pattern.sub(replacement, answer)
    before = None
    while before != answer:
        before, answer = answer, _FRACTION_OF.sub(r"((\1)/(\2))", answer)
    return answer.translate(str.maketrans("{[]}", "(())"))


def _parsed(text: str) -> ast.expr:
    if not _ALLOWED.fullmatch(text):
        raise ValueError(f"unexpected text in {text[:40]!r}")
    try:
        return ast.parse(_LEADING_ZEROS.sub("", " ".join(text.split())), mode="eval").body
    except SyntaxError as error:
        raise ValueError(error.msg) from error


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """The exact value; the numbers in it are added to `used`."""
    match node:
        case ast.Constant(int(number)):
            used.append(number)
            return Fraction(number)
        case ast.BinOp(left, operation, right) if type(operation) in _BY_NODE:
            return _BY_NODE[type(operation)](_value(left, used), _value(right, used))
        case ast.UnaryOp(operation, operand) if type(operation) in _BY_NODE:
            return _BY_NODE[type(operation)](_value(operand, used))
    raise ValueError("unexpected operation")
