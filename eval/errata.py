"""Published problems whose tests are known to be wrong, as data: errata.jsonl beside this file.

Every row says why, and who found it. They stay in a benchmark, because published scores include
them; a report counts them, so that a point lost there is not taken for the model's.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

from eval.records import Problem, Record


class Erratum(Record):
    source: str
    question_id: str
    """As its source numbers it."""
    title: str
    problem_id: str
    """`eval.records.problem_id` of the statement as published."""
    kind: Literal["many answers", "interactive", "wrong tests"]
    reason: str


@cache
def all_errata() -> tuple[Erratum, ...]:
    with Path(__file__).with_name("errata.jsonl").open("rb") as lines:
        return tuple(map(Erratum.model_validate_json, lines))


def errata_of(problems: Iterable[Problem]) -> dict[str, Erratum]:
    """The errata among `problems`, by problem id: known by statement, or by the source's own id."""
    by_statement = {e.problem_id: e for e in all_errata()}
    by_question = {e.question_id: e for e in all_errata() if not e.question_id.isdigit()}
    found = {p.id: by_statement.get(p.id) or by_question.get(p.id) for p in problems}
    return {problem_id: erratum for problem_id, erratum in found.items() if erratum}
