"""One raw row of a source as a Problem: which field means what is the source's to say."""

import json
import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import ValidationError

from configs.sources import Source
from eval.answers import extract_boxed
from eval.records import HIGHEST_LIMIT, Problem, TestSuite
from eval.suite_formats import joined, parse_suite, with_checker
from tasks.row_fields import MISSING, BadField, field_of, text_of
from tasks.row_prompt import Tables, prompt_of

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?![0-9])")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)")
_LATEST_SECOND = 1e11  # later numbers count milliseconds


def to_problem(row: dict[str, Any], source: Source, tables: Tables | None = None) -> Problem:
    """One raw row as a Problem; raises BadField, which names the field.

    A row without answer or tests is an error unless the source allows it: then the problem is not
    judgeable. `tables` are those of the source's lookup.
    """
    fields: dict[str, Any] = {
        "domain": source.domain,
        "prompt": prompt_of(row, source, tables),
        "source": source.name,
        "date": _date(row, source.date_field),
    }
    gold = _answer(row, source) if source.domain == "math" else _tests(row, source)
    if gold is None:
        fields["judgeable"] = False
    else:
        fields["answer" if source.domain == "math" else "tests"] = gold
    try:
        problem = Problem.model_validate(fields)
        values = problem.model_dump(exclude_none=True)
        stored = orjson.dumps(values)  # what no table can hold is this row's fault
    except ValidationError as error:
        first = error.errors()[0]
        raise BadField(".".join(map(str, first["loc"])) or "row", first["msg"]) from error
    except TypeError as error:
        raise BadField("row", f"cannot be stored: {error}") from error
    if b"null" in stored and _holds_no_number(values):
        raise BadField("row", "cannot be stored: a value is NaN or infinite")
    return problem


def _holds_no_number(values: Any) -> bool:
    """Whether a float in it is none: orjson writes null for it, which would be another test."""
    if isinstance(values, float):
        return not math.isfinite(values)
    if isinstance(values, dict):
        return any(map(_holds_no_number, values.values()))
    return isinstance(values, (list, tuple)) and any(map(_holds_no_number, values))


def _date(row: dict[str, Any], name: str) -> str | None:
    """The ISO day; numbers are seconds or milliseconds since 1970."""
    value = field_of(row, name) if name else MISSING
    if value is MISSING or value == "":
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value / 1000 if value > _LATEST_SECOND else value
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    elif day := _DAY.match(str(value)):
        return day[0]
    raise BadField(name, f"{value!r} is no date")


def _answer(row: dict[str, Any], source: Source) -> str | None:
    name = source.answer_field
    value = field_of(row, name) if name else MISSING
    if isinstance(value, str) and value.startswith('["') and value.endswith('"]'):
        with suppress(ValueError):
            value = json.loads(value)  # Skywork-OR1: a list of texts inside a text
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        if len(value) > 1:
            raise BadField(name, f"{len(value)} answers; the judge takes one")
        value = value[0] if value else MISSING
    text = "" if value is MISSING else _answer_text(value, name)
    if source.answer_in_box and text:
        boxed = extract_boxed(text)
        if boxed.answer is None:
            raise BadField(name, boxed.reason)
        text = boxed.answer
    if not text or text.lower() in {a.lower() for a in source.no_answers}:
        return _no_gold(source, name, "missing" if value is MISSING else text or "empty")
    return text


def _answer_text(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadField(name, f"must be text or a number, this is a {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadField(name, f"{value} is no answer")
    return str(value).strip()


def _no_gold(source: Source, name: str, why: str) -> None:
    """A source without gold has a prompt to offer; any other row without is a bad one."""
    if source.gold_optional or not name:
        return
    said = why if why in ("missing", "empty") else f"{why!r} is no answer to judge by"
    raise BadField(name, said)


def _tests(row: dict[str, Any], source: Source) -> TestSuite | None:
    suites: list[TestSuite] = []
    names = [name.strip() for name in source.tests_field.split("+") if name.strip()]
    for name in names:
        # EvalPlus keeps its tests in several fields of the row.
        value = row if name == "." else field_of(row, name)
        if value is MISSING or value in ("", "[]", [], {}):
            continue
        try:
            suites.append(
                parse_suite(
                    value,
                    fn_name=text_of(row, source.fn_name_field),
                    setup=text_of(row, source.setup_field),
                    time_limit_s=_limit(row, source.time_limit_field, source.time_limit_s, 0.1),
                    memory_mb=round(_limit(row, source.memory_field, source.memory_mb, 16)),
                )
            )
        except (ValueError, RecursionError) as error:
            raise BadField(name, str(error)) from error
    if not suites:
        missing = all(field_of(row, name) is MISSING for name in names)
        return _no_gold(source, source.tests_field, "missing" if missing else "empty")
    try:
        suite = joined(suites)
        checker = text_of(row, source.checker_field)
        return with_checker(suite, checker) if checker.strip() else suite
    except ValueError as error:
        raise BadField(source.tests_field, str(error)) from error


def _limit(row: dict[str, Any], name: str, otherwise: float, least: float) -> float:
    """The number a limit begins with (`2.0 seconds`); `otherwise` where there is none."""
    value = field_of(row, name) if name else MISSING
    found = _NUMBER.match(str(value)) if isinstance(value, str | int | float) else None
    number = float(found[1]) if found else 0.0
    return min(max(number, least), float(HIGHEST_LIMIT)) if number else otherwise
