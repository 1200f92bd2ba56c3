"""Collecting one part of the sources: what a worker process of the collect stage does.

It imports no Prefect, so that workers start in half a second.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from configs.sources import CollectSettings, Source
from eval.records import Problem, Rejected, problem_id
from eval.row_files import Row
from eval.tables import TableWriter
from tasks.collect_plan import KEPT, REJECTED, Part
from tasks.generated import generated_problems
from tasks.progress import report
from tasks.row_fields import BadField, field_of
from tasks.row_prompt import Tables, prompt_of
from tasks.row_to_problem import to_problem
from tasks.sources import kept_texts, piece_rows

ROWS_PER_REPORT = 500
LONGEST_ROW = 1_000_000
"""Characters of a rejected row that are kept; of a longer one the start tells enough."""
COUNTS = "counts.json"


class LeftOut(NamedTuple):
    """A row that the source's `where` does not ask for."""


def read_source(
    part: Part, source: Source, root: Path, seed: int, tables: Tables | None = None
) -> Iterator[Problem | Rejected | LeftOut]:
    """The rows of one part, good and bad, in order."""
    if source.kind == "generated":
        yield from generated_problems(source, seed)
        return
    for piece in part.pieces:
        for row in piece_rows(piece, source, root, source.name):
            wanted = row.value is None or _is_wanted(row.value, source.where)
            yield checked(row, source, tables) if wanted else LeftOut()


def _is_wanted(row: dict[str, Any], where: Mapping[str, Any]) -> bool:
    for name, value in where.items():
        found = field_of(row, name)
        allowed = value if isinstance(value, tuple) else (value,)
        if (found if isinstance(found, bool | int | str) else "") not in allowed:
            return False
    return True


def checked(row: Row, source: Source, tables: Tables | None = None) -> Problem | Rejected:
    """The row as a Problem, or why it is none."""
    reason = row.error
    if row.value is not None:
        try:
            return to_problem(row.value, source, tables)
        except (ValueError, RecursionError) as error:
            reason = str(error)
    return Rejected(
        id=_id_if_any(row, source, tables),
        source=source.name,
        reason=_storable(f"{row.file} row {row.number}: {reason}"),
        row=_storable(_original(row)),
    )


def _original(row: Row) -> str:
    text = row.raw if row.value is None else json.dumps(row.value, default=str)
    if len(text) <= LONGEST_ROW:
        return text
    return f"{text[:1000]}… ({len(text):,} characters)"


def _storable(text: str) -> str:
    """Lone surrogates, which no table can hold, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _id_if_any(row: Row, source: Source, tables: Tables | None) -> str:
    try:
        return problem_id(prompt_of(row.value or {}, source, tables))
    except BadField:
        return ""


def collect_part(
    part: Part,
    folder: Path,
    *,
    settings: CollectSettings,
    seed: int,
    texts: Mapping[str, Mapping[str, list[Path]]],
) -> None:
    """Write the problems, rejects and counts of one part to `folder`."""
    source = settings.sources[part.source]
    tables = kept_texts(texts.get(source.name, {}))
    left_out = 0
    with (
        TableWriter(folder / KEPT, Problem) as kept,
        TableWriter(folder / REJECTED, Rejected) as rejected,
    ):
        rows = read_source(part, source, Path(settings.root), seed, tables)
        for number, row in enumerate(rows, 1):
            if isinstance(row, Problem):
                kept.write(row)
            elif isinstance(row, Rejected):
                rejected.write(row)
            else:
                left_out += 1
            if number % ROWS_PER_REPORT == 0:
                report(part.number, part.of, f"{source.name}: {number:,} rows")
            if kept.rows == source.limit:
                break
    counts = {"kept": kept.rows, "rejected": rejected.rows, "left_out": left_out}
    (folder / COUNTS).write_text(json.dumps(counts))
