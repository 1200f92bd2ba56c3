"""Collect: every declared source becomes Problems; a row that cannot is rejected with its place.

    deepscaler.jsonl row 17: field answer: missing

Nothing is dropped silently and a bad row never ends the stage; a missing or damaged file does.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from configs.data_stages import CollectSettings, Source
from eval.answers import extract_boxed
from eval.records import Problem, Rejected, TestSuite, problem_id
from eval.row_files import Row
from eval.suite_formats import parse_suite
from eval.tables import TableWriter
from tasks.generated import generated_problems
from tasks.progress import report
from tasks.sources import collected_files, source_rows
from tasks.stage import Metrics, stage

MISSING = object()
ROWS_PER_REPORT = 500


class BadField(ValueError):
    """A field that cannot be used; the message is `field NAME: what is wrong`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"field {field}: {problem}")


def to_problem(row: dict[str, Any], source: Source) -> Problem:
    """One raw row as a Problem; raises ValueError (BadField) that names the field."""
    prompt = _prompt(row, source.prompt_field)
    date = _field(row, source.date_field) if source.date_field else None
    fields: dict[str, Any] = {
        "domain": source.domain,
        "prompt": prompt,
        "source": source.name,
        "date": None if date in (None, MISSING) else str(date)[:10],
    }
    if source.domain == "math":
        fields["answer"] = _answer(row, source)
    else:
        fields["tests"] = _tests(row, source)
    try:
        problem = Problem.model_validate(fields)
        orjson.dumps(problem.model_dump())  # what no table can hold is this row's fault
    except ValidationError as error:
        first = error.errors()[0]
        raise BadField(".".join(map(str, first["loc"])) or "row", first["msg"]) from error
    except TypeError as error:
        raise BadField("row", f"cannot be stored: {error}") from error
    return problem


def _field(row: dict[str, Any], name: str) -> Any:
    """The value at `name`; a dot reaches into an object, also one written as a JSON string."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return MISSING
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def _prompt(row: dict[str, Any], name: str) -> str:
    value = _field(row, name)
    if isinstance(value, list):  # chat messages: the user's first turn is the problem
        turns = (m for m in value if isinstance(m, dict) and _speaker(m) in ("user", "human"))
        first = next(turns, {})
        value = first.get("content", first.get("value", MISSING))
    if value is MISSING or value is None:
        raise BadField(name, "missing")
    if not isinstance(value, str):
        raise BadField(name, f"must be text, this is a {type(value).__name__}")
    if not value.strip():
        raise BadField(name, "empty")
    return value.strip()


def _speaker(message: dict[str, Any]) -> str:
    return str(message.get("role") or message.get("from") or "")


def _answer(row: dict[str, Any], source: Source) -> str:
    name = source.answer_field
    value = _field(row, name)
    if value is MISSING or value is None:
        raise BadField(name, "missing")
    if isinstance(value, str) and value.startswith('["') and value.endswith('"]'):
        with suppress(ValueError):
            value = json.loads(value)  # Skywork-OR1: a list of texts inside a text
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadField(name, f"must be text or a number, this is a {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadField(name, f"{value} is no answer")
    text = str(value).strip()
    if source.answer_in_box:
        boxed = extract_boxed(text)
        if boxed.answer is None:
            raise BadField(name, boxed.reason)
        text = boxed.answer
    if not text:
        raise BadField(name, "empty")
    return text


def _tests(row: dict[str, Any], source: Source) -> TestSuite:
    name = source.tests_field
    if not name:
        return TestSuite(kind="stdin", cases=())
    value = _field(row, name)
    if value is MISSING or value is None:
        raise BadField(name, "missing")
    try:
        return parse_suite(
            value,
            fn_name=_fn_name(row, source.fn_name_field),
            time_limit_s=source.time_limit_s,
            memory_mb=source.memory_mb,
        )
    except ValueError as error:
        raise BadField(name, str(error)) from error


def _fn_name(row: dict[str, Any], name: str) -> str:
    value = _field(row, name) if name else ""
    return value if isinstance(value, str) else ""


def read_source(source: Source, root: Path, seed: int) -> Iterator[Problem | Rejected]:
    """All rows of one source, good and bad, in order; `limit` counts the good ones."""
    if source.kind == "generated":
        yield from generated_problems(source, seed)
        return
    for row in source_rows(source, root):
        yield _checked(row, source)


def _checked(row: Row, source: Source) -> Problem | Rejected:
    reason = row.error
    if row.value is not None:
        try:
            return to_problem(row.value, source)
        except ValueError as error:
            reason = str(error)
    return Rejected(
        id=_id_if_any(row, source),
        source=source.name,
        reason=f"{row.file} row {row.number}: {reason}",
        row=row.raw if row.value is None else json.dumps(row.value, default=str),
    )


def _id_if_any(row: Row, source: Source) -> str:
    try:
        return problem_id(_prompt(row.value or {}, source.prompt_field))
    except BadField:
        return ""


@stage(version=1, reads=collected_files)
def collect(out: Path, *, settings: CollectSettings, seed: int) -> Metrics:
    """Gather the problems of every source (§3.1, §3.2.1); bad rows are kept apart with a reason."""
    counts: Counter[str] = Counter()
    total = 0
    with (
        TableWriter(out / "kept.parquet", Problem) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        for number, source in enumerate(settings.sources):
            taken = 0
            for row in read_source(source, Path(settings.root), seed):
                good = isinstance(row, Problem)
                (kept if good else rejected).write(row)
                taken += good
                counts[f"{'kept' if good else 'rejected'}_{source.name}"] += 1
                total += 1
                if total % ROWS_PER_REPORT == 0:
                    report(number, len(settings.sources), f"{source.name}: {total} rows")
                if taken == source.limit:
                    break
    return {"kept": kept.rows, "rejected": rejected.rows, **counts}
