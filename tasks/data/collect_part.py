"""Collecting one part of the sources: what a worker process of the collect stage does."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from configs.settings.sources import CollectSettings, Source
from eval.records import Problem, Rejected, problem_id
from eval.row_files import Row
from eval.tables import TableWriter
from tasks.data.generated import generated_problems
from tasks.data.row_to_problem import BadField, Tables, field_of, prompt_of, to_problem
from tasks.data.sources import Part, piece_rows
from tasks.stage.progress import report

ROWS_PER_REPORT = 500
LONGEST_ROW = 1_000_000
"""Characters of a rejected row that are kept; of a longer one the start tells enough."""
KEPT, REJECTED, COUNTS = "kept.parquet", "rejected.parquet", "counts.json"


def collect_part(
    part: Part,
    folder: Path,
    *,
    settings: CollectSettings,
    seed: int,
    texts: Mapping[int, Mapping[str, Path]],
) -> None:
    """Write the problems, rejects and counts of one part to `folder`."""
    source = settings.sources[part.source]
    files = texts.get(part.source, {})
    tables = {name: orjson.loads(file.read_bytes()) for name, file in files.items()}
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


def read_source(
    part: Part, source: Source, root: Path, seed: int, tables: Tables
) -> Iterator[Problem | Rejected | None]:
    """The rows of one part in order, good and bad; None for one that `where` leaves out."""
    if source.kind == "generated":
        yield from generated_problems(source, seed)
    for piece in part.pieces:
        for row in piece_rows(piece, source, root, source.name):
            wanted = row.value is None or _is_wanted(row.value, source.where)
            yield checked(row, source, tables) if wanted else None


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
    try:
        known_id = problem_id(prompt_of(row.value or {}, source, tables))
    except BadField:
        known_id = ""
    original = row.raw if row.value is None else json.dumps(row.value, default=str)
    if len(original) > LONGEST_ROW:
        original = f"{original[:1000]}… ({len(original):,} characters)"
    return Rejected(
        id=known_id,
        source=source.name,
        reason=_storable(f"{row.file} row {row.number}: {reason}"),
        row=_storable(original),
    )


def _storable(text: str) -> str:
    """Lone surrogates, which no table can hold, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
