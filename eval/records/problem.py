"""A task to solve, and the tests of a program that solves it."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

Domain = Literal["math", "code"]

NO_GOLD = "not judgeable: its source gives no answer and no tests"
"""Why every answer to a prompt without gold is unscored."""
ANY_OF = r"\anyof"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is passed over
HIGHEST_LIMIT = 1_000_000
"""Seconds or megabytes of one test: no suite asks for more, and no kernel has a place for 1e300."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def normalise_prompt(prompt: str) -> str:
    """NFKC, lower case, single spaces: two prompts that differ in typesetting only are one."""
    return " ".join(unicodedata.normalize("NFKC", prompt).lower().split())


def problem_id(prompt: str) -> str:
    """16 hex digits of the SHA-256 of the normalised prompt."""
    return hashlib.sha256(normalise_prompt(prompt).encode("utf-8", "replace")).hexdigest()[:16]


def any_of(golds: Sequence[str]) -> str:
    r"""One text of several golds, `\anyof{1/2}{0.5}`: an answer that equals any of them is right.
    Raises ValueError for golds that cannot stand in braces."""
    text = ANY_OF + "".join(f"{{{gold}}}" for gold in golds)
    if golds_of(text) != tuple(golds):
        raise ValueError(f"golds whose braces do not match: {'; '.join(golds)[:60]}")
    return text


def golds_of(answer: str) -> tuple[str, ...]:
    """The golds of a math problem: mostly one, the answer itself."""
    golds, start, depth = list[str](), 0, 0
    for match in _BRACE.finditer(answer) if answer.startswith(f"{ANY_OF}{{") else ():
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if match[0] == "{" and depth == 1:
            start = match.end()
        elif match[0] == "}" and depth == 0:
            golds.append(answer[start : match.start()])
    return tuple(golds) if depth == 0 and golds else (answer,)


class StdinCase(Record):
    """The program reads `input` on stdin; its stdout must equal `output`."""

    input: str
    output: str


class CallCase(Record):
    """`fn_name(*args)` must return `output` (both JSON; tuples count as lists)."""

    args: tuple[JsonValue, ...]
    output: JsonValue


class AssertCase(Record):
    """`code` runs after the program and must not raise; it may call `candidate`."""

    code: str


class CheckerCase(Record):
    """Like a stdin case, but the trusted Python program `checker` decides (many answers)."""

    input: str
    output: str
    checker: str


_OfPrograms = tuple[AssertCase, ...] | tuple[CheckerCase, ...]


class TestSuite(Record):
    """How a program is tested: the fixed interface of DESIGN §12."""

    __test__ = False  # not a pytest class

    kind: Literal["stdin", "call", "assert", "checker"]
    fn_name: str | None = None
    cases: tuple[StdinCase, ...] | tuple[CallCase, ...] | _OfPrograms
    wrapped: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Call tests: each output stood in a list of one, so that 9 and [9] are both right."""
    time_limit_s: Annotated[float, Field(gt=0, le=HIGHEST_LIMIT)] = 6.0
    memory_mb: Annotated[int, Field(ge=16, le=HIGHEST_LIMIT)] = 1024

    @model_validator(mode="after")
    def cases_match_the_kind(self) -> Self:
        expected = f"{self.kind.title()}Case"
        for i, case in enumerate(self.cases):
            if type(case).__name__ != expected:
                raise ValueError(f"cases[{i}] is no {self.kind} case: {sorted(case.model_dump())}")
        if self.kind == "call" and not self.fn_name:
            raise ValueError("call tests need fn_name, the function to call")
        return self


class Problem(Record):
    """One task to solve. `id` defaults to the hash of the normalised prompt."""

    id: str = ""
    domain: Domain
    prompt: str = Field(min_length=1)
    answer: str | None = None  # math: the gold, LaTeX or plain; several by `any_of`
    numbers: tuple[int, ...] | None = None
    """Make-the-target problems: the numbers the boxed expression must use, each exactly once."""
    tests: TestSuite | None = None  # code: the hidden tests
    source: str = ""
    date: str | None = None  # ISO date the problem was published: benchmarks are cut by date window
    judgeable: bool = True
    """False: its source gives neither answer nor tests. Answers to it are for SFT, never scored."""

    @model_validator(mode="before")
    @classmethod
    def default_id(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("id") and isinstance(data.get("prompt"), str):
            return {**data, "id": problem_id(data["prompt"])}
        return data

    @model_validator(mode="after")
    def can_be_judged(self) -> Self:
        if not self.judgeable:
            if any(gold is not None for gold in (self.answer, self.tests, self.numbers)):
                raise ValueError("judgeable is false, yet there is an answer or tests")
        elif self.domain == "math" and not (self.answer or "").strip():
            raise ValueError("a math problem needs an answer")
        elif self.domain == "code" and self.tests is None:
            raise ValueError("a code problem needs tests")
        return self


class Rejected(Record):
    """A row that a stage dropped, and why; `row` is JSON or its text, at most a megabyte of it."""

    id: str
    source: str = ""
    reason: str
    row: str
