"""Rows as MLflow shows them: the first of a table, its columns, and the answers of an evaluation.

A table is `{"columns": names, "data": rows}`. Long texts lose their middle: a browser reads a table
whole.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...eval.records import Problem, Score
from ...eval.records.tables import column, read_table
from ...training.launch.result_files import SAMPLES, SCORES, both_ends
from ..report.results import rows_at

MAIN = ("kept", "samples", "scores", "difficulty")
"""The table that a stage is read for, where it has several."""
FIRST = 5
CELL = 150  # characters of either end of a text in the first rows
TEXT = 1_000  # and of an answer
MOST_PROBLEMS = 2_000
COLSPEC = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "long"),
    (pa.types.is_floating, "double"),
    (pa.types.is_string, "string"),
)
"""How MLflow calls the types of columns; others have Arrow's name."""
ANSWER_COLUMNS = (
    "prompt", "expected", "right", "answers", "verdicts", "reason", "answer", "benchmark",
    "problem_id",
)  # fmt: skip


def main_table(folder: Path) -> Path | None:
    """The file of a result that others read; None where it has no rows."""
    tables = {p.stem: p for p in sorted(folder.glob("*.parquet"))}
    return next(
        (tables[name] for name in MAIN if name in tables), next(iter(tables.values()), None)
    )


def schema_of(path: Path) -> dict[str, Any]:
    """The columns as MLflow shows those of a dataset."""

    def kind(data_type: pa.DataType) -> str:
        return next((name for fits, name in COLSPEC if fits(data_type)), str(data_type))

    fields = pq.read_schema(path)
    columns = [{"name": f.name, "type": kind(f.type), "required": not f.nullable} for f in fields]
    return {"mlflow_colspec": columns}


def first_rows(path: Path) -> dict[str, Any]:
    """The first five rows of a file as a table."""
    file = pq.ParquetFile(path)
    batch = next(file.iter_batches(batch_size=FIRST), None)

    def shown(value: Any) -> Any:
        if value is None or isinstance(value, int | float):
            return value
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        return both_ends(text, CELL)

    rows = batch.to_pylist() if batch else []
    return {
        "columns": file.schema_arrow.names,
        "data": [[shown(value) for value in row.values()] for row in rows],
    }


def answers_by_problem(folder: Path) -> dict[str, Any] | None:
    """Every problem of an evaluation, of very many the first, with the verdicts of its answers in
    their order and its first wrong answer, or the first; None of any other stage."""
    problems = folder / "problems.parquet"
    if not problems.exists() or not (folder / SCORES).exists():
        return None
    scores = defaultdict[str, list[Score]](list)
    for score in read_table(folder / SCORES, Score):
        scores[score.problem_id].append(score)
    keys = zip(*(column(folder / SAMPLES, name) for name in ("problem_id", "index")), strict=True)
    places = {key: place for place, key in enumerate(keys)}
    listed = [p for p, _ in zip(read_table(problems, Problem), range(MOST_PROBLEMS), strict=False)]
    chosen = {
        p.id: min(scores[p.id], key=lambda s: (s.correct is not False, s.index))
        for p in listed
        if scores[p.id]
    }
    numbers = [places[s.problem_id, s.index] for s in chosen.values()]
    texts = {row["problem_id"]: row["text"] for row in rows_at(folder / SAMPLES, numbers)}
    rows = [
        (
            both_ends(p.prompt, TEXT),
            p.answer if p.tests is None else f"{len(p.tests.cases)} tests",
            sum(bool(s.correct) for s in scores[p.id]),
            len(scores[p.id]),
            " ".join(s.verdict for s in sorted(scores[p.id], key=lambda s: s.index)),
            chosen[p.id].reason if p.id in chosen else "not answered",
            both_ends(texts.get(p.id, ""), TEXT),
            p.source,
            p.id,
        )
        for p in listed
    ]
    return {"columns": [*ANSWER_COLUMNS], "data": rows}
