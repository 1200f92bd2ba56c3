"""One raw row of a source as a Problem: which field means what is the source's to say."""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import ValidationError

from ...configs.settings.sources import Lookup, Source
from ..answers import THINK_CLOSE, THINK_OPEN, after_think, extract_boxed
from ..programs.evalplus import reference_suite, statements
from ..programs.formats import joined, parse_suite, with_checker, with_setup
from ..records import HIGHEST_LIMIT, Problem, PublishedRate, TestSuite, Trace, any_of
from .fields import (
    NAMES,
    BadField,
    answer_turn,
    as_one_text,
    decoded,
    field_of,
    find,
    folded,
    plain_text,
    quoted,
    spelled_list,
    text_of,
    turns_of,
)
from .gold_text import after_mark
from .options import LETTERS, letter_of, options_of, shuffled, with_options

SEVERAL = "answers; the judge takes one"
_WITH_A_UNIT = re.compile(
    r"^([-+]?\d[\d.,/]*)\s+\((?!base|mod|sin|cos|tan|log|bin|oct|hex)[A-Za-z]{3,}(?: [A-Za-z]+)*\)$"
)  # ASDiv: `9 (apples)`
Tables = Mapping[str, Mapping[str, str]]
"""The texts of each lookup table, by what its rows are found by."""


def to_problem(row: dict[str, Any], source: Source, tables: Tables | None = None) -> Problem:
    """One raw row as a Problem; raises BadField, which names the field, also for a row without gold
    unless the source allows it. `tables` are those of the source's lookup."""
    math_ = source.domain == "math"
    gold = answer_of(row, source) if math_ else tests_of(row, source)
    prompt = prompt_of(row, source, tables)
    if source.by_shape and isinstance(gold, TestSuite) and (name := gold.fn_name):
        method = name.removeprefix("Solution().")
        what = "a class `Solution` with the method" if method != name else "the function"
        if not names_it(prompt, method):
            prompt = f"{prompt}\n\nYour code should define {what} `{method}`."
    try:
        problem = Problem(
            domain=source.domain,
            prompt=prompt,
            source=source.name,
            date=date_of(row, source.date_field),
            judgeable=gold is not None,
            **({"answer" if math_ else "tests": gold} if gold is not None else {}),  # type: ignore
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadField(".".join(map(str, first["loc"])) or "row", first["msg"]) from error
    try:  # what no table can hold is this row's fault
        values = problem.model_dump(exclude_none=True)
        if b"null" in orjson.dumps(values):  # so orjson writes NaN: it would be another test
            json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadField("row", f"cannot be stored: {error}") from error
    return problem


def names_it(prompt: str, function: str) -> bool:
    """Whether a prompt says what the function is called; `to add two numbers` does not."""
    naming = r"\b(?:function|method|def|class|called|named)\s+[`'\"]?"
    return bool(re.search(rf"\b{function}\s*\(|[`'\"]{function}\b|{naming}{function}\b", prompt))


def date_of(row: dict[str, Any], name: str) -> str | None:
    """The ISO day; numbers are seconds or milliseconds since 1970, not a year or 20240801."""
    value = field_of(row, name)
    if value is None or value == "":
        return None
    with suppress(ValueError, OverflowError, OSError):
        if not isinstance(value, int | float):
            return datetime.fromisoformat(str(value)).date().isoformat()
        if value >= 1e8:  # 1973
            seconds = value / 1000 if value >= 1e11 else value
            return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    raise BadField(name, f"{value!r} is no ISO date and no seconds since 1970")


def prompt_of(row: dict[str, Any], source: Source, tables: Tables | None = None) -> str:
    """The problem statement, without boilerplate. Raises BadField."""
    name = source.prompt_parts[0].field if source.prompt_parts else source.prompt_field
    text = _parts(row, source) if source.prompt_parts else plain_text(field_of(row, name), name)
    lookup = source.lookup
    if lookup and (text == lookup.placeholder or name == lookup.index_field):
        text = _looked_up(row, lookup, tables or {})
    before = None
    while text != before:  # whatever the order the boilerplate comes in
        before = text = text.strip()
        for prefix in source.strip_prefixes:
            text = text.removeprefix(prefix.strip())
        for suffix in source.strip_suffixes:
            text = text.removesuffix(suffix.strip())
    if not text:
        raise BadField(name, "empty")
    if source.options_field:
        text = with_options(text, _options(row, source, text))
    if source.show_tests and (shown := _shown_tests(row, source)):
        which = "this test" if len(shown) == 1 else "these tests"
        text = "\n\n".join([text, f"Your code should pass {which}:", "\n".join(shown)])
    return text


def _options(row: dict[str, Any], source: Source, prompt: str) -> list[tuple[str, str]]:
    """In the order that the prompt shows."""
    options = options_of(row, source.options_field)
    return shuffled(options, prompt) if _right_option(row, source) else options


def _right_option(row: dict[str, Any], source: Source) -> tuple[str, str] | None:
    """The option that is the gold, where one of the fields of options holds it."""
    names = [name.strip() for name in source.options_field.split("+")]
    if source.answer_field not in names[:-1]:
        return None
    filled = [name for name in names if field_of(row, name) not in (None, "")]
    return options_of(row, source.options_field)[filled.index(source.answer_field)]


def _shown_tests(row: dict[str, Any], source: Source) -> list[str]:
    for name in (source.shown_field or source.tests_field).split("+"):
        value = decoded(field_of(row, name.strip()))
        if isinstance(value, list) and value and all(isinstance(code, str) for code in value):
            return [code.strip() for code in value[: source.show_tests]]
    return []


def traces_of(row: dict[str, Any], source: Source) -> list[Trace]:
    """The published answers of a row, in order; none where the field is empty. `trace_model` may be
    a field. Raises BadField."""
    traces: list[Trace] = []
    model = text_of(row, source.trace_model) or source.trace_model
    for name in source.trace_fields:
        value = field_of(row, name)
        turns = turns_of(value)
        several = isinstance(value, list) and all(isinstance(v, str | None) for v in value)
        for each in value if several else (answer_turn(turns) if turns else value,):
            if each is not None and (text := plain_text(each, name)):
                text = worked_solution(text, source) or text
                traces.append(Trace(source=source.name, model=model, text=text))
    return traces


def worked_solution(text: str, source: Source) -> str:
    """A solution that people wrote, in the form of a reasoning model: the work is the thinking, and
    what follows `answer_after` is in a box; a bare program is fenced. Empty for any other text."""
    if THINK_CLOSE in text:
        return ""
    if source.domain == "code":
        return f"{THINK_OPEN}\n{THINK_CLOSE}\n```python\n{text}\n```" if statements(text) else ""
    work, mark, _ = text.rpartition(source.answer_after) if source.answer_after else ("", "", "")
    if not mark:
        return ""
    answer = after_mark(text, mark, source.answer_field)
    return f"{THINK_OPEN}\n{work.strip()}\n{THINK_CLOSE}\n\\boxed{{{answer}}}"


def pass_rate_of(row: dict[str, Any], source: Source) -> PublishedRate | None:
    """The published pass rate of a row; None where it has none. Raises BadField."""
    name, value = source.pass_rate_field, field_of(row, source.pass_rate_field)
    if value is None or value in ("", "n/a"):
        return None
    passed, _, answers = str(value).partition("/")
    word = {"right": 1.0, "wrong": 0.0}.get(passed.strip().lower())
    try:
        count = int(answers or 1)
        rate = float(passed) / count if word is None else word
        who = {"source": source.name, "model": source.pass_rate_model}
        return PublishedRate(rate=rate, answers=count, **who)
    except (ValueError, ZeroDivisionError) as error:
        raise BadField(name, f"{value!r} is no pass rate between 0 and 1") from error


def _parts(row: dict[str, Any], source: Source) -> str:
    texts: list[str] = []
    for number, part in enumerate(source.prompt_parts):
        value = field_of(row, part.field)
        if number and value is None:
            continue
        if number and isinstance(value, list) and all(isinstance(e, dict) for e in value):
            pairs = [(e.get("input", ""), e.get("output", "")) for e in value]
            text = "\n\n".join(f"Input:\n{i}\nOutput:\n{o}".strip() for i, o in pairs)
        else:
            text = plain_text(as_one_text(value), part.field)
        if text:
            texts.append(f"{part.heading}\n\n{text}" if part.heading else text)
        elif not number:
            raise BadField(part.field, "empty")
    return "\n\n".join(texts)


def _looked_up(row: dict[str, Any], lookup: Lookup, tables: Tables) -> str:
    table = "/".join(str(field_of(row, name)) for name in lookup.table_fields)
    if len(lookup.tables) == 1:
        (table,) = lookup.tables
    key = str(field_of(row, lookup.index_field))
    if key not in tables.get(table, {}):
        raise BadField(lookup.index_field, f"no row {key} in the lookup table {table!r}")
    return tables[table][key].strip()


def answer_of(row: dict[str, Any], source: Source) -> str | None:
    """The gold; None where a source may be without. Raises BadField."""
    name = source.answer_field
    value = field_of(row, name)
    if source.options_field and value not in (None, ""):
        bare = prompt_of(row, source.model_copy(update={"options_field": ""}))
        options = _options(row, source, bare)
        if right := _right_option(row, source):  # a label of another option may read the same
            return LETTERS[options.index(right)]
        from_0 = source.options_from == 0 and "options_from" in source.model_fields_set
        if from_0 and "+" in source.options_field:  # COPA counts `choice1` and `choice2` from 0
            options = [("" if label.isdecimal() else label, text) for label, text in options]
        return letter_of(value, options, name, source.options_from)
    value = spelled_list(value)
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        values = list(dict.fromkeys(str(v).strip() for v in value))
        if len(values) > 1 and not (source.all_answers or source.any_answer):
            typed = f"--fields gold={quoted(name)}"
            fix = f"{typed},any_answer=true if each alone is right, {typed},all_answers=true if not"
            raise BadField(name, f"{len(values)} {SEVERAL} ({'; '.join(values)[:60]}): {fix}")
        if len(values) > 1 and source.any_answer:
            try:
                value = any_of(values)
            except ValueError as error:
                raise BadField(name, str(error)) from error
        else:
            value = ", ".join(values) if len(values) > 1 else next(iter(value), None)
    if value is None:
        return _no_gold(source, name, "missing")
    boolean = isinstance(value, bool) and not source.by_shape
    if boolean or not isinstance(value, str | int | float):
        raise BadField(name, f"must be text or a number, this is a {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadField(name, f"{value} is no answer")
    text = str(value).strip()
    if source.by_shape and THINK_CLOSE in text:
        text = (after_think(text) or "").strip()
    if source.by_shape:
        text = _WITH_A_UNIT.sub(r"\1", text)
    if source.answer_after and text:
        text = after_mark(text, source.answer_after, name)
    if source.answer_in_box and text:
        boxed = extract_boxed(text)
        if boxed.answer is None:
            raise BadField(name, boxed.reason)
        text = boxed.answer
    if not text:
        return _no_gold(source, name, "empty")
    if text.lower() in {a.lower() for a in source.no_answers}:
        return _no_gold(source, name, f"{text!r} is no answer to judge by")
    return text


def _no_gold(source: Source, name: str, why: str) -> None:
    """A source without gold has a prompt to offer; any other row without is a bad one."""
    if name and not source.gold_optional:
        raise BadField(name, why)


def tests_of(row: dict[str, Any], source: Source) -> TestSuite | None:
    """The tests; None where a source may be without. Raises BadField."""
    names = [name.strip() for name in source.tests_field.split("+") if name.strip()]
    values = {name: field_of(row, name) for name in names}
    if names and {folded(name) for name in names} <= {folded(name) for name in NAMES["inputs"]}:
        return _by_reference(row, source, values)
    suites: list[TestSuite] = []
    for name, value in values.items():
        tests = decoded(value)
        if not tests or (isinstance(tests, dict) and not any(tests.values())):
            continue  # CodeContests writes an empty group as two empty lists
        try:
            suite = parse_suite(
                value,
                fn_name=text_of(row, source.fn_name_field),
                time_limit_s=_limit(row, source.time_limit_field, source.time_limit_s, 0.1),
                memory_mb=round(_limit(row, source.memory_field, source.memory_mb, 16)),
                helpers=text_of(row, source.prompt_field),
            )
        except (ValueError, RecursionError) as error:
            raise BadField(name, str(error)) from error
        suites.append(suite)
    if not suites:
        missing = all(value is None for value in values.values())
        return _no_gold(source, source.tests_field, "missing" if missing else "empty")
    try:
        suite = with_setup(joined(suites), _lines(field_of(row, source.setup_field)))
        checker = text_of(row, source.checker_field)
        return with_checker(suite, checker) if checker.strip() else suite
    except ValueError as error:
        raise BadField(source.tests_field, str(error)) from error


def _by_reference(row: dict[str, Any], source: Source, values: dict[str, Any]) -> TestSuite:
    """Tests of inputs alone, whose results the row's own solution computes. Raises BadField."""
    name, lists = source.tests_field, [decoded(value) or [] for value in values.values()]
    if not all(isinstance(inputs, list) for inputs in lists):
        raise BadField(name, "must be lists of inputs")
    tolerance = field_of(row, find(row, "atol"))
    try:
        return reference_suite(
            [args for inputs in lists for args in inputs],
            text_of(row, find(row, "canonical_solution")),
            text_of(row, source.fn_name_field),
            text_of(row, source.prompt_field),
            float(tolerance) if isinstance(tolerance, int | float) else 0.0,
        )
    except ValueError as error:
        raise BadField(name, str(error)) from error


def _lines(value: Any) -> str:
    value = decoded(value)
    lines = value if isinstance(value, list) else [value]
    return "\n".join(line.strip() for line in lines if isinstance(line, str)).strip()


def _limit(row: dict[str, Any], name: str, otherwise: float, least: float) -> float:
    """The row's own limit where it is a number above 0."""
    value = field_of(row, name)
    number = value if isinstance(value, int | float) and value > 0 else otherwise
    return min(max(float(number), least), float(HIGHEST_LIMIT))
