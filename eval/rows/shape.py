"""Rows whose fields nobody named: which hold the prompt, the gold and the tests, by their shape.
Each row becomes a `Source` that names the fields, by which it is read. Where two fields hold
different golds, or nothing could match them, it is refused."""

import re
from contextlib import suppress
from typing import Any

from ...configs.settings.base import read_catalogue
from ...configs.settings.explain import nearest
from ...configs.settings.sources import PromptPart, Source
from ..records import Problem, TestSuite
from .fields import (
    HEADINGS,
    NAMES,
    BadField,
    absent,
    all_of,
    decoded,
    field_of,
    find,
    first_of,
    folded,
    plain_text,
    text_of,
)
from .gold_field import with_gold
from .to_problem import date_of, names_it, prompt_of, tests_of

_ANY = Source(name="any", files=("any",), by_shape=True, gold_optional=True)
_IMPORTS = re.compile(r"(?:\s*(?:from [\w.]+ )?import [^\n]*(?:\n|$))+\s*")


def recognised(row: dict[str, Any], source: Source) -> tuple[Source, str]:
    """The source with every field of this row named, and a remark. Raises BadField."""
    row = {name: value for name, value in row.items() if isinstance(name, str)}
    fields = dict[str, Any](_prompt_fields(row, source))
    if not source.date_field and (date := first_of(row, NAMES["dates"])):
        with suppress(BadField):  # a date that nobody named rejects no row
            fields["date_field"] = date if date_of(row, date) else ""
    trial = source.model_copy(update=fields)
    troubles, all_tests = list[BadField](), "+".join(NAMES["tests"]).split("+")
    if not source.answer_field and (tested := _test_fields(row, trial, troubles)):
        return trial.model_copy(update=tested), ""
    try:
        broken = [e for e in troubles if e.field.partition(".")[0] not in NAMES["tests_or_gold"]]
        if broken:
            raise broken[0]
        if source.domain == "code" or source.tests_field:
            raise troubles[0] if troubles else absent("tests", all_tests, row)
        return with_gold(row, trial, troubles, all_tests)
    except BadField:
        if source.gold_optional:
            return trial.model_copy(update={"domain": source.domain}), ""
        raise


def text_of_problem(row: dict[str, Any], field: str = "") -> str:
    """The statement of a problem, in `field` or by shape, also without a gold. Raises BadField."""
    if field:
        return plain_text(field_of(row, field), field)
    return prompt_of(row, _ANY.model_copy(update=_prompt_fields(row, _ANY)))


def _prompt_fields(row: dict[str, Any], source: Source) -> dict[str, Any]:
    """prompt_field or prompt_parts, and instructions for another form of answer to strip."""
    fields: dict[str, Any] = {}
    if not (source.strip_prefixes or source.strip_suffixes or source.gold_optional):
        entries = read_catalogue("catalogue").values()
        for key in ("strip_prefixes", "strip_suffixes"):
            fields[key] = tuple(t for e in entries for t in e.get(key, ()))
    names = [source.prompt_field] if source.prompt_field else all_of(row, NAMES["prompts"])
    name = next((n for n in names if _is_question(row, n)), "")
    if not name:
        if names:
            plain_text(field_of(row, names[0]), names[0])  # raises with what it is
        raise absent("a problem", names or NAMES["prompts"], row)
    contexts = (n for n in all_of(row, NAMES["contexts"]) if isinstance(field_of(row, n), str))
    parts = [PromptPart(field=context) for context in contexts if context != name]
    parts.append(PromptPart(field=name))
    if folded(name) == "instruction" and (more := find(row, "input")):
        parts.append(PromptPart(field=more))
    if folded(name) in ("description", "problemstatement", "statement"):
        headed = {find(row, key): heading for key, heading in HEADINGS.items()}
        parts += [PromptPart(field=key, heading=text) for key, text in headed.items() if key]
    if (starter := first_of(row, NAMES["starters"])) and text_of(row, starter).strip():
        parts.append(PromptPart(field=starter, heading="Starter code"))
    fields["prompt_field"] = name
    return {**fields, "prompt_parts": tuple(parts)} if len(parts) > 1 else fields


def _is_question(row: dict[str, Any], name: str) -> bool:
    with suppress(BadField):
        text = plain_text(field_of(row, name), name)
        return bool(text) and not _IMPORTS.fullmatch(text)
    return False


def _test_fields(
    row: dict[str, Any], source: Source, troubles: list[BadField]
) -> dict[str, Any] | None:
    """What names the tests of a row, or None; what only looks like tests is added to `troubles`."""
    groups = [source.tests_field] if source.tests_field else NAMES["tests"]
    fields: dict[str, Any] = {"domain": "code"}
    if not source.fn_name_field:
        fields["fn_name_field"] = first_of(row, NAMES["functions"])
    for group in groups:
        names = list(dict.fromkeys(all_of(row, group.split("+"))))
        trial = source.model_copy(update={**fields, "tests_field": "+".join(names)})
        inputs = not source.tests_field and group == NAMES["tests"][0]
        likely = [n for n in names if inputs or _may_be_tests(field_of(row, n))]
        if not likely:
            continue
        trial = trial.model_copy(update={"tests_field": "+".join(likely)})
        if folded(likely[0]) == "testlist" and (setup := first_of(row, NAMES["setups"])):
            trial = trial.model_copy(update={"setup_field": setup})
        if folded(likely[0]) == "officialtests":
            beside = {"checker_field": "generated_checker", "memory_field": "memory_limit"}
            beside |= {"time_limit_field": "time_limit"}
            trial = trial.model_copy(update={name: find(row, n) for name, n in beside.items()})
        suite = None
        try:
            suite = tests_of(row, trial)
        except BadField as error:
            troubles.append(error)
        if suite:
            changed = {n: v for n, v in trial if getattr(source, n) != v}
            return {**changed, "domain": "code", **_shown(row, trial, suite)}
    return None


def _may_be_tests(value: Any) -> bool:
    """Whether a value has the form of tests: a gold like `["7"]` or `algebra` has not."""
    value = decoded(value)
    if isinstance(value, str):
        words = ("assert", "unittest", "def check")
        return any(word in value for word in words) or value.startswith("eJ")
    if isinstance(value, list):
        codes = all(isinstance(v, str) and "assert" in v for v in value)
        return bool(value) and (codes or all(isinstance(v, dict) for v in value))
    return isinstance(value, dict) and any(value.values()) and value.keys() != {"ground_truth"}


def _shown(row: dict[str, Any], source: Source, suite: TestSuite) -> dict[str, Any]:
    """How the prompt names the function: by assertions, as MBPP and EvalPlus show them."""
    if suite.kind != "assert" or suite.fn_name:
        return {}
    listed = find(row, "test_list") or source.tests_field
    value = decoded(field_of(row, listed))
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return {}
    is_listed, own = folded(listed.rpartition(".")[2]) == "testlist", listed == source.tests_field
    called = () if is_listed else re.findall(r"(\w+)\s*\(", str(value[0]))
    if any(names_it(prompt_of(row, source), name) for name in called):
        return {}
    return {"show_tests": 3 if is_listed and own else 1, "shown_field": "" if own else listed}


def own_problem(row: dict[str, Any], source: Source) -> Problem | None:
    """The Problem that a row of this project's own tables is; None for any other row."""
    names, more = Problem.model_fields, row.keys() - Problem.model_fields.keys()
    misspelt = "id" in row and all(isinstance(n, str) and nearest(n, names) for n in more)
    if not {"domain", "prompt"} <= row.keys() or (more and not misspelt):
        return None
    values = {name: value for name, value in row.items() if value is not None}
    if isinstance(tests := values.get("tests"), str):
        values["tests"] = decoded(tests)
    return Problem.model_validate({**values, "source": source.name})


def used_fields(source: Source) -> set[str]:
    names = [source.prompt_field, *(part.field for part in source.prompt_parts)]
    names += [source.date_field, source.shown_field, source.setup_field, source.fn_name_field]
    names += [source.checker_field, source.time_limit_field, source.memory_field]
    names += source.options_field.split("+")
    names += source.tests_field.split("+") if source.domain == "code" else [source.answer_field]
    if source.tests_field.split("+")[0] in NAMES["inputs"]:
        names += ["canonical_solution", "atol"]
    return {name.strip().partition(".")[0] for name in names if name}


def described(source: Source) -> str:
    """How rows are read, in words: `prompt: question · gold: answer after "####"`."""
    parts = [part.field for part in source.prompt_parts] or [source.prompt_field]
    if source.domain == "code":
        tests = source.tests_field.replace("+", " + ")
        return f"prompt: {' + '.join(parts)} · tests: {tests}"
    gold = source.answer_field
    if source.options_field:
        parts.append(source.options_field.replace("+", " + "))
        gold = f"letter of {gold}" + ", counted from 1" * (source.options_from == 1)
    elif source.answer_in_box:
        gold = f"last box of {gold}"
    elif source.answer_after:
        gold = f'{gold} after "{source.answer_after.strip()}"'
    elif source.all_answers or source.any_answer:
        gold = f"{'all' if source.all_answers else 'any'} of {gold}"
    return f"prompt: {' + '.join(parts)} · gold: {gold}"
