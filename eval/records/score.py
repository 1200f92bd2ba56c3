"""What the judge says of an answer."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import model_validator

from .problem import Record

Verdict = Literal["AC", "WA", "TLE", "MLE", "OLE", "RE", "CE", "IE"]


@dataclass(frozen=True)
class Judgement:
    """Of an answer, or of a program on one test or all: IE when the gold itself cannot be read."""

    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0
    passed: int = 0
    total: int = 0  # tests of a program

    @property
    def rate(self) -> float:
        """Share of tests passed; 1 or 0 where there are none."""
        return self.passed / self.total if self.total else float(self.verdict == "AC")


class Score(Record):
    """The judge's word on one Sample. `verdict == "IE"` means *unscored*, never wrong: reward,
    correct and pass_rate are None and the sample leaves every mean and every group."""

    problem_id: str
    index: int = 0
    reward: float | None = None
    correct: bool | None = None
    pass_rate: float | None = None  # Code: share of tests passed, in [0, 1]. Math: 1.0 or 0.0.
    verdict: Verdict
    answer: str | None = None  # what was judged: the boxed expression, or the program
    reason: str = ""
    seconds: float = 0.0

    @model_validator(mode="after")
    def unscored_carries_no_number(self) -> Self:
        values = (self.reward, self.correct, self.pass_rate)
        if self.verdict == "IE" and any(v is not None for v in values):
            raise ValueError("an unscored answer (IE) carries no reward, correct or pass_rate")
        if self.verdict != "IE" and any(v is None for v in values):
            raise ValueError(f"a {self.verdict} score needs reward, correct and pass_rate")
        return self

    @property
    def unscored(self) -> bool:
        return self.verdict == "IE"
