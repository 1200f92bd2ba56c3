"""Rows whose fields nobody named: which hold the prompt, the gold and the tests, by their shape.

A row is recognised by itself, so that a file may mix kinds. What is recognised is a `Source` that
names the fields, read like any other; nothing depends on the name of a file. Where two fields hold
different golds, or nothing could match what they hold, the row is refused with the reason.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...configs.settings.base import read_catalogue
from ...configs.settings.explain import nearest
from ...configs.settings.sources import PromptPart, Source
from ..records import Problem, TestSuite
from . import gold_text
from .fields import BadField, answer_turn, decoded, field_of, plain_text, text_of, turns_of
from .golds import unjudgeable
from .options import options_of, place_in
from .to_problem import SEVERAL, answer_of, names_it, prompt_of, tests_of

PROMPTS = (
    "problem", "question", "problem_description", "question_content", "problem_statement",
    "instruct_prompt", "prompt", "query", "question_stem", "question_text", "problem_text",
    "instruction", "input", "statement", "description", "task", "text", "body", "content",
    "conversations", "messages", "complete_prompt", "0.value",
)  # fmt: skip
GOLDS = (
    "answer", "final_answer", "expected_answer", "correct_answer", "gold_answer", "ground_truth",
    "gold", "gt", "gt_answer", "reference_answer", "ref_answer", "true_answer", "target_answer",
    "numerical_answer", "extracted_answer", "parsed_answer", "short_answer", "answer_value",
    "final_ans", "ans", "answer_key", "correct", "correct_option", "correct_choice", "answers",
    "reward_model.ground_truth", "verification_info.ground_truth", "verification_info.answer",
    "extra_info.ground_truth", "1.ground_truth.value", "target", "cop",
)  # fmt: skip
PLACES = ("answer_index", "answer_idx", "correct_index", "correct_idx", "label", "gold_index")
"""Golds only where the row lists options."""
WORKED = (
    "solution", "reference_solution", "gold_standard_solution", "worked_solution", "rationale",
    "full_solution", "generated_solution", "output", "response", "completion", "explanation",
    "target_text", "solutions", "conversations", "messages",
)  # fmt: skip
"""Solutions, for the answer that stands in them, where no field of `GOLDS` has one."""
TESTS = (
    ("tests",), ("public_test_cases", "private_test_cases"),
    ("public_tests", "private_tests", "generated_tests"), ("official_tests",), ("test",),
    ("test_code",), ("unit_tests",), ("unit_test",), ("test_cases",), ("testcases",),
    ("hidden_tests",), ("input_output",), ("test_list",), ("asserts",), ("assertions",),
    ("assert_case",), ("test_suite",), ("verification_info.test_cases",), ("verification_info",),
    ("info.tests",), ("reward_model.ground_truth",), ("ground_truth",), ("examples_io",),
)  # fmt: skip
_OR_A_GOLD = ("verification_info", "info", "reward_model", "ground_truth", "examples_io")
"""Fields that may hold tests, and in other rows a gold."""
A_LETTER = " (a letter, but the prompt has no options)"
RAW_EVALPLUS = (
    "inputs without expected outputs, which EvalPlus computes; take the same problems with `test` "
    "from the hub (evalplus/mbppplus is --bench mbpp_plus, evalplus/humanevalplus as a file)"
)
OPTIONS = ("options", "choices", "endings", "answer_options", "answer_option_list", "option_list")
FUNCTIONS = (
    "entry_point", "fn_name", "func_name", "function_name", "method_name", "metadata.func_name",
    "metadata.fn_name", "test_info.0.function_name", "extra_info.fn_name",
)  # fmt: skip
STARTERS = ("starter_code", "starter", "function_header", "function_signature")
SETUPS = ("test_setup_code", "test_imports")
CONTEXTS = ("passage", "context", "article")
DATES = ("date", "contest_date", "contest_start")
HEADINGS = {
    "input_format": "Input", "input_specification": "Input", "output_format": "Output",
    "output_specification": "Output", "interaction_format": "Interaction", "examples": "Examples",
    "note": "Note",
}  # fmt: skip
_ANY = Source(name="any", files=("any",), by_shape=True, gold_optional=True)
_IMPORTS = re.compile(r"(?:\s*(?:from [\w.]+ )?import [^\n]*(?:\n|$))+\s*")
_WRONG_ONE = re.compile(r"(?:incorrect|wrong)_?(?:answer|option)_?(\d)|distractor_?(\d)")
_COLUMNS = (("a", "b", "c", "d", "e"), *(
    tuple(f"{start}{end}" for end in ends)
    for start in ("option_", "choice_", "option", "opt_", "op")
    for ends in ("abcde", "12345")
))  # fmt: skip


def recognised(row: dict[str, Any], source: Source) -> tuple[Source, str]:
    """The source with every field of this row named, and what is to be remarked; fields that
    `source` names stay. Raises BadField, which says what was looked for."""
    row = {name: value for name, value in row.items() if isinstance(name, str)}
    fields = dict[str, Any](_prompt_fields(row, source))
    if not source.date_field and (date := first_of(row, DATES)):
        fields["date_field"] = date
    trial = source.model_copy(update=fields)
    troubles = list[BadField]()
    if not source.answer_field and (tested := _test_fields(row, trial, troubles)):
        return trial.model_copy(update=tested), ""
    try:
        if raw := first_of(row, ("plus_input", "base_input")):
            raise BadField(raw, RAW_EVALPLUS)
        if broken := [e for e in troubles if e.field.partition(".")[0] not in _OR_A_GOLD]:
            raise broken[0]
        if source.domain == "code" or source.tests_field:
            raise troubles[0] if troubles else _absent("tests", [n for g in TESTS for n in g], row)
        return _with_gold(row, trial, troubles)
    except BadField:
        if source.gold_optional:
            return trial.model_copy(update={"domain": source.domain}), ""
        raise


def text_of_problem(row: dict[str, Any], field: str = "") -> str:
    """The statement of a problem, in `field` or by shape, also of a row without a gold. Raises
    BadField."""
    if field:
        return plain_text(field_of(row, field), field)
    return prompt_of(row, _ANY.model_copy(update=_prompt_fields(row, _ANY)))


def find(row: dict[str, Any], wanted: str) -> str:
    """The name of the row's field that is called `wanted`, whatever its case and hyphens, if it
    holds anything; else empty."""
    value, path = row, list[str]()
    for part in wanted.split("."):
        value = decoded(value)
        if isinstance(value, list):
            key = part if part.isdecimal() and int(part) < len(value) else None
        else:
            names = value if isinstance(value, dict) else ()
            key = next((k for k in names if isinstance(k, str) and folded(k) == folded(part)), None)
        if key is None:
            return ""
        value = value[int(key)] if isinstance(value, list) else value[key]
        path.append(key)
    return "" if value is None or value in ("", [], {}, "[]", "{}") else ".".join(path)


def folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def first_of(row: dict[str, Any], names: Sequence[str]) -> str:
    return next(_all_of(row, names), "")


def _all_of(row: dict[str, Any], names: Sequence[str]) -> Iterator[str]:
    return filter(None, (find(row, name) for name in names))


def _absent(what: str, names: Sequence[str], row: dict[str, Any]) -> BadField:
    empty = [key for key in row if folded(key) in map(folded, names)]
    if empty:
        return BadField(empty[0], "empty")
    has = ", ".join(row) or "none"
    near = dict.fromkeys(n for key in row if (n := nearest(key, list(names))))
    close = f" ({'; '.join(key.strip('; ') for key in near)})" if near else ""
    looked = ", ".join(dict.fromkeys(names))
    return BadField("row", f"no field holds {what}; its fields: {has}{close}; looked for: {looked}")


def _prompt_fields(row: dict[str, Any], source: Source) -> dict[str, Any]:
    """prompt_field, or prompt_parts where the statement is in several; and instructions around it
    that ask for another form of answer, which the catalogue knows."""
    fields: dict[str, Any] = {}
    if not (source.strip_prefixes or source.strip_suffixes or source.gold_optional):
        entries = read_catalogue("catalogue").values()
        for key in ("strip_prefixes", "strip_suffixes"):
            fields[key] = tuple(t for e in entries for t in e.get(key, ()))
    names = [source.prompt_field] if source.prompt_field else list(_all_of(row, PROMPTS))
    name = next((n for n in names if _is_question(row, n)), "")
    if not name:
        if names:
            plain_text(field_of(row, names[0]), names[0])  # raises with what it is
        raise _absent("a problem", names or PROMPTS, row)
    parts = [PromptPart(field=context) for context in _all_of(row, CONTEXTS) if context != name]
    parts = [part for part in parts if isinstance(field_of(row, part.field), str)]
    parts.append(PromptPart(field=name))
    if folded(name) == "instruction" and (more := find(row, "input")):
        parts.append(PromptPart(field=more))
    if folded(name) in ("description", "problemstatement", "statement"):
        known = {find(row, key): heading for key, heading in HEADINGS.items()}
        parts += [PromptPart(field=key, heading=text) for key, text in known.items() if key]
    if (starter := first_of(row, STARTERS)) and text_of(row, starter).strip():
        parts.append(PromptPart(field=starter, heading="Starter code"))
    fields["prompt_field"] = name
    return {**fields, "prompt_parts": tuple(parts)} if len(parts) > 1 else fields


def _is_question(row: dict[str, Any], name: str) -> bool:
    try:
        text = plain_text(field_of(row, name), name)
    except BadField:
        return False
    return bool(text) and not _IMPORTS.fullmatch(text)


def _test_fields(
    row: dict[str, Any], source: Source, troubles: list[BadField]
) -> dict[str, Any] | None:
    """What names the tests of a row that has some; None where it has none. What looks like tests
    and is none is added to `troubles`."""
    groups = [source.tests_field.split("+")] if source.tests_field else TESTS
    fields: dict[str, Any] = {"domain": "code"}
    if not source.fn_name_field:
        fields["fn_name_field"] = first_of(row, FUNCTIONS)
    for group in groups:
        names = list(dict.fromkeys(_all_of(row, group)))
        trial = source.model_copy(update={**fields, "tests_field": "+".join(names)})
        likely = [n for n in names if _may_be_tests(field_of(row, n))]
        if not likely:
            continue
        trial = trial.model_copy(update={"tests_field": "+".join(likely)})
        if folded(likely[0]) == "testlist" and (setup := first_of(row, SETUPS)):
            trial = trial.model_copy(update={"setup_field": setup})
        if folded(likely[0]) == "officialtests":
            found = {key: find(row, key) for key in ("generated_checker", "time_limit")}
            limits = {
                "memory_field": find(row, "memory_limit"),
                "time_limit_field": found["time_limit"],
            }
            trial = trial.model_copy(update={"checker_field": found["generated_checker"], **limits})
        try:
            suite = tests_of(row, trial)
        except BadField as error:
            troubles.append(error)
            continue
        if suite is None:
            continue
        changed = {n: v for n, v in trial if getattr(source, n) != v}
        return {**changed, "domain": "code", **_shown(row, trial, suite)}
    return None


def _may_be_tests(value: Any) -> bool:
    """Whether a value has the form of tests: a gold like `["7"]` or `algebra` has not."""
    value = decoded(value)
    if isinstance(value, str):
        return any(
            word in value for word in ("assert", "unittest", "def check")
        ) or value.startswith("eJ")
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
    if folded(listed.rpartition(".")[2]) == "testlist":
        many = 3 if listed == source.tests_field else 1
    elif any(names_it(prompt_of(row, source), n) for n in re.findall(r"(\w+)\s*\(", str(value[0]))):
        return {}
    else:
        many = 1
    return {"show_tests": many, "shown_field": "" if listed == source.tests_field else listed}


def _with_gold(row: dict[str, Any], source: Source, troubles: list[BadField]) -> tuple[Source, str]:
    """The source with the field of its gold, and how it stands there; and a remark."""
    options = source.options_field or _options_field(row)
    source = source.model_copy(update={"domain": "math", "options_field": options})
    prompt = prompt_of(row, source.model_copy(update={"options_field": ""}))
    used = source.prompt_field.split(".")[0]
    names = [source.answer_field] if source.answer_field else list(_all_of(row, GOLDS))
    if options and not source.answer_field:
        names += _all_of(row, PLACES)
    readings = list[tuple[Source, str]]()
    for name in dict.fromkeys(names):
        if name == used or (folded(name) == "correct" and _is_boolean(field_of(row, name))):
            continue  # whether somebody's solution is right
        try:
            readings.append(_read_gold(row, name, source, prompt, worked=False))
        except BadField as error:
            troubles.append(error)
    if not readings and any(SEVERAL in str(error) for error in troubles):
        raise next(error for error in troubles if SEVERAL in str(error))
    if not readings and not source.answer_field:
        for name in _all_of(row, WORKED):
            if name == used and turns_of(field_of(row, name)) is None:
                continue
            try:
                reading = _read_gold(row, name, source, prompt, worked=True)
                if troubles and not (reading[0].answer_in_box or reading[0].answer_after):
                    continue  # a word beside a gold that is none
                readings.append(reading)
                break
            except BadField as error:
                troubles.append(error)
                if gold_text.A_PROGRAM in str(error):  # what stands beside it is no answer either
                    raise
    if not readings:
        tests = [name for group in TESTS for name in group]
        raise troubles[0] if troubles else _absent("a gold", [*tests, *GOLDS, *WORKED], row)
    if not options:  # a letter counts where nothing else is there
        readings.sort(key=lambda reading: gold_text.is_bare_letter(reading[1], prompt))
    chosen, gold = readings[0]
    bare = not options and gold_text.is_bare_letter(gold, prompt)
    remark = A_LETTER if bare else ""
    readings = [
        r for r in readings if bare or options or not gold_text.is_bare_letter(r[1], prompt)
    ]
    for other, value in readings[1:]:
        if not _is_same(gold, value):
            a, b = chosen.answer_field, other.answer_field
            fix = f"name one: --fields gold={quoted(a)} or --fields gold={quoted(b)}"
            raise BadField("row", f"{a} ({gold[:40]}) and {b} ({value[:40]}) differ; {fix}")
    return chosen, remark


def quoted(name: str) -> str:
    """A field's name as one types it in a shell."""
    return name if re.fullmatch(r"[\w.+-]+", name) else f'"{name}"'


def _options_field(row: dict[str, Any]) -> str:
    if name := first_of(row, OPTIONS):
        return name
    wrong = sorted(key for key in row if _WRONG_ONE.fullmatch(key.lower().replace(" ", "_")))
    right = first_of(row, ("correct_answer", "right_answer", "answer"))
    if wrong and right:
        return "+".join([right, *wrong])
    for columns in _COLUMNS:
        names = list(_all_of(row, columns))
        if len(names) > 1:
            return "+".join(names)
    return ""


def place_of(row: dict[str, Any], source: Source) -> str:
    """Where the number that a row has as gold stands among its options, for a file that may count
    them from 0 or from 1: `zero`, `count` or `between`; empty for a row without such a number."""
    field = source.options_field or _options_field(row)
    if not field:
        return ""
    options = options_of(row, field)
    taken = {text.strip().lower() for option in options for text in option}
    names = [source.answer_field] if source.answer_field else [*GOLDS, *PLACES]
    for name in _all_of(row, names):
        number = place_in(field_of(row, name))
        if number is not None and str(number) not in taken:
            return {0: "zero", len(options): "count"}.get(number, "between")
    return ""


def _read_gold(
    row: dict[str, Any], name: str, source: Source, prompt: str, *, worked: bool
) -> tuple[Source, str]:
    """The source that reads the gold from the field, and the gold. Raises BadField."""
    value = field_of(row, name)
    if turns := turns_of(value):
        text, listed = answer_turn(turns), decoded(value)
        place = next((i for i, turn in enumerate(turns) if turn.text is text), -1)
        if text is None or not isinstance(text, str):
            raise BadField(name, "the chat has no answer")
        name = f"{name}.{place}.{'content' if 'content' in listed[place] else 'value'}"
        value = text
    elif isinstance(inside := decoded(value), dict) and inside:  # SQuAD, TriviaQA
        inner = first_of(inside, ("text", "value", "answer", "ground_truth"))
        if not inner:
            raise BadField(name, f"an object with {', '.join(map(str, inside))[:60]} is no gold")
        name, value = f"{name}.{inner}", inside[inner]
    fields: dict[str, Any] = {"answer_field": name}
    values = decoded(value) if isinstance(value, str) and value[:2] in ('["', "['") else value
    if isinstance(values, list):
        every = _is_boolean(flag := field_of(row, find(row, "is_multiple_answer")))
        fields["all_answers"] = every and str(flag).lower() == "true"
        value = values[0] if values else None
        if not fields["all_answers"] and (
            _are_equal(values) or (source.options_field and len(values) == 1)
        ):
            fields["answer_field"] = name = f"{name}.0"
    if isinstance(value, str) and not source.options_field:
        rule = gold_text.rule_of(value)
        fields |= {"answer_in_box": rule.form == "box", "answer_after": rule.mark}
        if rule.form == "plain" and gold_text.is_program(value):
            raise BadField(name, f"{gold_text.A_PROGRAM}, and no field holds tests")
        if worked and rule.form == "plain" and not gold_text.is_short(value.strip()):
            raise BadField(name, 'a solution without "####", a box or "the answer is"')
    reading = source.model_copy(update=fields)
    gold = answer_of(row, reading)
    if gold is None:
        raise BadField(name, "empty")
    if why := unjudgeable(Problem.model_construct(domain="math", prompt=prompt, answer=gold)):
        raise BadField(name, why)
    return reading, gold


def _is_boolean(value: Any) -> bool:
    return str(value).lower() in ("true", "false")


def _are_equal(values: list[Any]) -> bool:
    """Whether these are several spellings of one value."""
    first, *others = [str(value) for value in values] or [""]
    return {first} < {first, *others} and all(_is_same(first, other) for other in others)


def _is_same(gold: str, other: str) -> bool:
    from ..math_answers.verify import quick_verdict  # a run begins without it

    verdict = None if gold == other else quick_verdict(gold, other)
    return gold == other or (verdict is not None and verdict.verdict == "AC")


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
    """The fields of a row that the source reads."""
    names = [source.prompt_field, *(part.field for part in source.prompt_parts)]
    names += [source.date_field, source.shown_field, source.setup_field, source.fn_name_field]
    names += [source.checker_field, source.time_limit_field, source.memory_field]
    names += source.options_field.split("+")
    names += source.tests_field.split("+") if source.domain == "code" else [source.answer_field]
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
    elif source.all_answers:
        gold = f"all of {gold}"
    return f"prompt: {' + '.join(parts)} · gold: {gold}"
