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
    as_one_text,
    decoded,
    field_of,
    find,
    first_of,
    folded,
    plain_text,
    quoted,
    spelled_list,
    text_of,
)
from .gold_field import with_gold
from .to_problem import date_of, names_it, prompt_of, tests_of

_ANY = Source(name="any", files=("any",), by_shape=True, gold_optional=True)
_TESTS = "+".join(NAMES["tests"]).split("+")
_ASKS = ("instruction", "prompt", "task", "question", "query", "definition")
_STATES = ("description", "problemstatement", "statement")
_IMAGE = re.compile(r"(?:decoded)?(?:image|picture|img)s?(?:\d+|path|url|bytes)?")
_TEMPLATE = re.compile(r"<\|im_start\|>|<\|start_header_id\|>|\[INST\]|### Response:")
_LABEL = re.compile(r"[\w./:-]*\w", re.ASCII)  # `gsm8k`, `1A`: what a problem is called
_IMPORTS = re.compile(r"(?:\s*(?:from [\w.]+ )?import [^\n]*(?:\n|$))+\s*")


def recognised(row: dict[str, Any], source: Source) -> tuple[Source, str]:
    """The source with every field of this row named, and a remark. Raises BadField."""
    row = {name: value for name, value in row.items() if isinstance(name, str)}
    fields = dict[str, Any](_prompt_fields(row, source))
    if not (source.prompt_field or source.gold_optional):
        _refuse_loss(row, fields["prompt_field"])
    if not source.date_field and (date := first_of(row, NAMES["dates"])):
        with suppress(BadField):  # a date that nobody named rejects no row
            fields["date_field"] = date if date_of(row, date) else ""
    trial = source.model_copy(update=fields)
    troubles = list[BadField]()
    if not source.answer_field and (tested := _test_fields(row, trial, troubles)):
        return trial.model_copy(update=tested), ""
    try:
        broken = [e for e in troubles if e.field.partition(".")[0] not in NAMES["tests_or_gold"]]
        if broken:
            raise broken[0]
        if source.domain == "code" or source.tests_field:
            raise troubles[0] if troubles else absent("tests", _TESTS, row)
        code = find(row, "code") if folded(trial.prompt_field) == "input" else ""
        if "\n" in text_of(row, code) and find(row, "output") and not source.prompt_field:
            raise BadField(code, "a program that the prompt asks about and lacks")  # CRUXEval
        return with_gold(row, trial, troubles, _TESTS)
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
    name = _question(row, source.prompt_field)
    parts = [PromptPart(field=context) for context in _contexts(row, name)]
    parts.append(PromptPart(field=name))
    if folded(name) in _ASKS and _is_more(row, more := find(row, "input"), name):
        parts.append(PromptPart(field=more))
    parts += _headed(row, name)
    if (starter := first_of(row, NAMES["starters"])) and text_of(row, starter).strip():
        parts.append(PromptPart(field=starter, heading="Starter code"))
    fields["prompt_field"] = name
    return {**fields, "prompt_parts": tuple(parts)} if len(parts) > 1 else fields


def _question(row: dict[str, Any], named: str) -> str:
    """The field that asks. Raises BadField."""
    names = [named] if named else all_of(row, NAMES["prompts"])
    questions = [n for n in names if _is_question(row, n)]
    if names and not questions:
        plain_text(field_of(row, names[0]), names[0])  # raises with what it is
    questions = [n for n in questions if n == questions[0] or folded(n) not in NAMES["contexts"]]
    texts = [n for n in questions if named or not _LABEL.fullmatch(plain_text(field_of(row, n), n))]
    if questions and not texts and folded(questions[0]) == "task":
        raise BadField(questions[0], "a label, and no problem")
    if not questions:
        raise absent("a problem", names or NAMES["prompts"], row)
    stated = [n for n in texts if folded(n) in _STATES]
    if texts and folded(texts[0]) == "input" and stated and _has_tests(row):
        texts = stated  # what `input` tells of a contest is its format
    return (texts or questions)[0]


def _has_tests(row: dict[str, Any]) -> bool:
    return any(_may_be_tests(field_of(row, n)) for n in all_of(row, _TESTS))


def _contexts(row: dict[str, Any], name: str) -> list[str]:
    """What stands before the question."""
    names = [n for n in all_of(row, NAMES["contexts"]) if n != name]
    if folded(name) in ("question", "query", "questionstem"):
        names += [n for n in all_of(row, ("text", "statement")) if _is_more(row, n, name)]
    if folded(name) == "input":
        names += [n for n in all_of(row, ("definition", "task")) if " " in text_of(row, n).strip()]
    prompt = plain_text(field_of(row, name), name)
    texts = ((n, as_one_text(field_of(row, n))) for n in names)
    stated = [(n, text.strip()) for n, text in texts if isinstance(text, str)]
    return [n for n, text in stated if not (prompt.startswith(text) or _are_lines_of(prompt, text))]


def _headed(row: dict[str, Any], name: str) -> list[PromptPart]:
    """The parts of a statement, as contests have them."""
    keys = dict(HEADINGS)
    if folded(name) in _STATES and find(row, "input") and _has_tests(row):
        keys |= {"input": "Input", "output": "Output"}
    headings = {n: heading for key, heading in keys.items() if (n := find(row, key))}
    if folded(name) not in _STATES and not {"Input", "Output"} & {*headings.values()}:
        return []
    prompt = plain_text(field_of(row, name), name)
    shown = (n for n in headings if not _are_lines_of(prompt, text_of(row, n)))
    return [PromptPart(field=n, heading=headings[n]) for n in shown]


def _are_lines_of(prompt: str, text: str) -> bool:
    return bool(text.strip()) and f"\n{text.strip()}\n" in f"\n{prompt}\n"


def _is_more(row: dict[str, Any], name: str, question: str) -> bool:
    """Whether a text says something that the question does not, and does not repeat it."""
    text, prompt = text_of(row, name).strip(), plain_text(field_of(row, question), question)
    return bool(text) and name != question and text not in prompt and prompt not in text


def _refuse_loss(row: dict[str, Any], name: str) -> None:
    """Raises BadField where the prompt would lack an image, a table or another object, or is a chat
    that a template wrote out."""
    images = (n for n in row if _IMAGE.fullmatch(folded(n)) and find(row, n))
    lost = [n for n in images if str(row[n]).lower() not in ("none", "null", "nan", "false")]
    contexts = (n for n in all_of(row, NAMES["contexts"]) if n != name)
    lost += [n for n in contexts if isinstance(as_one_text(field_of(row, n)), dict | list)]
    fix = f"--fields prompt={quoted(name)} asks"
    if lost:
        raise BadField(lost[0], f"belongs to the problem and is no text; {fix} without it")
    if mark := _TEMPLATE.search(text_of(row, name)):
        raise BadField(name, f"holds {mark[0]} of a chat template; {fix} with it")


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
        names = [_spelled(row, n) for n in dict.fromkeys(all_of(row, group.split("+")))]
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
            _refuse_checker(row, trial, source.tests_field)
            suite = tests_of(row, trial)
        except BadField as error:
            troubles.append(error)
        if suite:
            changed = {n: v for n, v in trial if getattr(source, n) != v}
            return {**changed, "domain": "code", **_shown(row, trial, suite)}
    return None


def _refuse_checker(row: dict[str, Any], source: Source, named_tests: str) -> None:
    """Raises BadField for a program that judges the outputs, where nobody named it or the tests."""
    name = find(row, "checker")
    if "\n" in text_of(row, name) and not (source.checker_field or named_tests):
        fix = f"--fields tests={source.tests_field} compares them without it"
        raise BadField(name, f"judges the outputs: {fix}, and with checker={quoted(name)} by it")


def _spelled(row: dict[str, Any], name: str) -> str:
    """Of a list of one text that spells the tests (Dolci), that text; else the field itself."""
    value = spelled_list(field_of(row, name))
    alone = isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)
    return f"{name}.0" if alone and not isinstance(decoded(value[0]), str) else name


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
