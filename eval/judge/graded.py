"""A few graded answers in full: what was asked, what was written, what every check said."""

from pathlib import Path

from pydantic import Field

from eval.records import Record, Verdict

FILE = "logs/graded.jsonl"


class Check(Record):
    """One test of a program, or the comparison with the gold answer."""

    name: str
    input: str
    expected: str
    verdict: Verdict
    reason: str = ""


class Graded(Record):
    """One answer and its grade, as they stand in the stage's tables; texts may be cut."""

    step: int | None = None
    """Rollout step in RL; None for a benchmark's answer."""
    problem_id: str
    index: int
    prompt: str
    text: str
    answer: str | None
    verdict: Verdict
    reward: float | None
    correct: bool | None
    pass_rate: float | None
    reason: str = ""
    checks: tuple[Check, ...] = ()
    checks_in_all: int = Field(default=0, ge=0)


def read_graded(path: Path) -> list[Graded]:
    """Every graded answer of a stage; none if it has none."""
    if not path.exists():
        return []
    with path.open("rb") as file:  # not splitlines of a text: an answer may hold its separators
        return [Graded.model_validate_json(line) for line in file]
