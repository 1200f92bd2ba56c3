"""The gold of a row whose fields nobody named: which field holds it, and how it stands there.

Every field that may hold one is read. Where two say different things the row is refused with the
names to choose from, and so is a list of different answers: whether one of them will do or all are
needed, only its author knows, unless the dataset says so (`is_multiple_answer`, `aliases`, SQuAD).
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from ...configs.settings.sources import Source
from ..records import Problem, golds_of
from . import gold_text
from .fields import (
    NAMES,
    USER,
    BadField,
    absent,
    all_of,
    answer_turn,
    decoded,
    field_of,
    find,
    first_of,
    folded,
    quoted,
    spelled_list,
    text_of,
    turns_of,
)
from .golds import unjudgeable
from .options import options_of, place_in
from .to_problem import SEVERAL, answer_of, prompt_of

AN_OBJECT = "an object"
A_LETTER = " (a letter, but the prompt has no options)"
_WRONG_ONE = re.compile(r"(?:incorrect|wrong)_?(?:answer|option)_?(\d)|distractor_?(\d)")
_COLUMNS = (("a", "b", "c", "d", "e"), *(
    tuple(f"{start}{end}" for end in ends)
    for start in ("option_", "choice_", "option", "opt_", "op")
    for ends in ("abcde", "12345")
))  # fmt: skip
_OWN = [folded(name) for name in NAMES["own_solutions"]]
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|[-+]?\\d?frac\{\d+\}\{\d+\}")


def with_gold(
    row: dict[str, Any], source: Source, troubles: list[BadField], looked_for: Sequence[str] = ()
) -> tuple[Source, str]:
    """The source with the field of its gold, and how it stands there; and a remark. `troubles`
    tell what looked like tests and was none, `looked_for` all names of such. Raises BadField."""
    options = source.options_field or options_field(row)
    source = source.model_copy(update={"domain": "math", "options_field": options})
    prompt = prompt_of(row, source.model_copy(update={"options_field": ""}))
    used = source.prompt_field.split(".")[0]
    names = [source.answer_field] if source.answer_field else all_of(row, NAMES["golds"])
    if [folded(name) for name in names] == ["aliases"] and not source.answer_field:
        troubles.append(BadField(names.pop(), "no answer stands beside them"))  # Codeforces
    if options and not source.answer_field:
        names += all_of(row, NAMES["places"])
    if "10^" in (unit := text_of(row, find(row, "unit"))) and not source.answer_field:
        raise BadField("unit", f"{unit.strip()} scales the gold, and the prompt does not say it")
    wrong = text_of(row, find(row, "error_type"))  # MMLU-Redux
    if wrong in ("no_correct_answer", "multiple_correct_answers"):
        raise BadField("error_type", f"says {wrong}")
    readings = list[tuple[Source, str]]()
    for name in dict.fromkeys(names):
        if name == used:
            continue
        if folded(name) == "correct" and not options and _share(field_of(row, name)) is not None:
            continue  # whether somebody's solution is right, or how often
        try:
            readings.append(_read_gold(row, name, source, prompt, worked=False))
        except BadField as error:
            troubles.append(error)
            if folded(name) == "rewardmodelgroundtruth" and AN_OBJECT in str(error):
                raise  # what a reward function computes with: `target` beside it is no answer
    if not readings and (several := [e for e in troubles if SEVERAL in str(e)]):
        raise several[0]
    if not readings:
        if not source.answer_field:
            readings = _from_solution(row, source, prompt, troubles)
        if not readings:
            missing = absent("a gold", [*looked_for, *NAMES["golds"], *NAMES["worked"]], row)
            raise troubles[0] if troubles else missing
    readings.sort(key=lambda reading: not reading[0].any_answer)
    if not options:  # a letter counts where nothing else is there
        readings.sort(key=lambda reading: gold_text.is_bare_letter(reading[1], prompt))
    chosen, gold = readings[0]
    is_worked = chosen.answer_field.partition(".")[0] in NAMES["worked"]
    if not (options or source.answer_field or is_worked):
        readings += _contradictions(row, source, prompt, gold)
    bare = not options and gold_text.is_bare_letter(gold, prompt)
    for other, value in readings[1:]:
        elsewhere = not (bare or options) and gold_text.is_bare_letter(value, prompt)
        if not elsewhere and not _is_same(gold, value):
            a, b = chosen.answer_field, other.answer_field
            fix = f"name one: --fields gold={quoted(a)} or --fields gold={quoted(b)}"
            raise BadField("row", f"{a} ({gold[:40]}) and {b} ({value[:40]}) differ; {fix}")
    return chosen, A_LETTER if bare else ""


def _from_solution(
    row: dict[str, Any], source: Source, prompt: str, troubles: list[BadField]
) -> list[tuple[Source, str]]:
    """The reading of the first solution that states an answer. Raises BadField for a program."""
    for name in all_of(row, NAMES["worked"]):
        if name == source.prompt_field.split(".")[0] and turns_of(field_of(row, name)) is None:
            continue
        try:
            _refuse_as_wrong(row, name, source)
            reading = _read_gold(row, name, source, prompt, worked=True)
            if not troubles or reading[0].answer_in_box or reading[0].answer_after:
                return [reading]  # else a word beside a gold that is none
        except BadField as error:
            troubles.append(error)
            if gold_text.A_PROGRAM in str(error):  # what stands beside it is no answer either
                raise
    return []


def _share(value: Any) -> float | None:
    """How much of something is right, from False, "true" or 0.75; None for any other value."""
    with suppress(ValueError):
        share = float({"false": 0, "true": 1}.get(str(value).lower(), str(value)))
        return share if 0 <= share <= 1 else None
    return None


def _refuse_as_wrong(row: dict[str, Any], name: str, source: Source) -> None:
    """Raises BadField for a solution that the row marks as wrong, or that answers another question
    than the prompt."""
    flag = find(row, "is_correct") or find(row, "correct")
    share = _share(field_of(row, flag))
    if folded(name) not in _OWN and share is not None and share < 1:
        raise BadField(flag, f"says that {name} is wrong")
    questions = [turn for turn in turns_of(field_of(row, name)) or [] if turn.role in USER]
    if len(questions) > 1 and name != source.prompt_field.partition(".")[0]:
        raise BadField(name, "a chat of several questions, of which the prompt is one")


def _contradictions(
    row: dict[str, Any], source: Source, prompt: str, gold: str
) -> list[tuple[Source, str]]:
    """The dataset's own solutions that end with another number: `target: 0.5` may be no gold."""
    from ..math_answers.verify import quick_verdict

    readings = list[tuple[Source, str]]()
    for name in all_of(row, NAMES["own_solutions"]):
        text = field_of(row, name)
        if name == source.prompt_field or not isinstance(text, str) or text.count("boxed") > 1:
            continue
        try:
            reading, stated = _read_gold(row, name, source, prompt, worked=True)
        except BadField:
            continue
        marked = reading.answer_in_box or reading.answer_after == gold_text.HASHES
        if marked and _NUMBER.fullmatch(stated.strip("$ ")):
            pairs = [pair for g in golds_of(gold) for pair in ((g, stated), (stated, g))]
            verdicts = [quick_verdict(*pair) for pair in pairs]
            if all(v is not None and v.verdict == "WA" for v in verdicts):
                readings.append((reading, stated))
    return readings


def options_field(row: dict[str, Any]) -> str:
    """The field or fields, joined by +, that list the options of a multiple choice; else empty."""
    if name := first_of(row, NAMES["options"]):
        return name
    wrong = sorted(key for key in row if _WRONG_ONE.fullmatch(key.lower().replace(" ", "_")))
    right = first_of(row, ("correct_answer", "right_answer", "answer"))
    if wrong and right:
        return "+".join([right, *wrong])
    listed = first_of(row, NAMES["wrong_options"])
    if right and isinstance(decoded(field_of(row, listed)), list):
        return f"{right}+{listed}"
    return next(("+".join(names) for c in _COLUMNS if len(names := all_of(row, c)) > 1), "")


def place_of(row: dict[str, Any], source: Source) -> str:
    """Where the number that a row has as gold stands among its options, for a file that may count
    them from 0 or from 1: `zero`, `count` or `between`; empty for a row without such a number."""
    field = source.options_field or options_field(row)
    if not field:
        return ""
    options = options_of(row, field)
    taken = {text.strip().lower() for option in options for text in option}
    names = [source.answer_field] if source.answer_field else [*NAMES["golds"], *NAMES["places"]]
    for name in all_of(row, names):
        number = place_in(field_of(row, name))
        if number is not None and str(number) not in taken:
            return {0: "zero", len(options): "count"}.get(number, "between")
    return ""


def _read_gold(
    row: dict[str, Any], name: str, source: Source, prompt: str, *, worked: bool
) -> tuple[Source, str]:
    """The source that reads the gold from the field, and the gold. Raises BadField."""
    value, fields = field_of(row, name), dict[str, Any]()
    if turns := turns_of(value):
        text, listed = answer_turn(turns), decoded(value)
        place = next((i for i, turn in enumerate(turns) if turn.text is text), -1)
        if text is None or not isinstance(text, str):
            raise BadField(name, "the chat has no answer")
        name = f"{name}.{place}.{'content' if 'content' in listed[place] else 'value'}"
        value = text
    elif isinstance(inside := decoded(value), dict) and inside:  # SQuAD, TriviaQA
        inner = first_of(inside, ("text", "value", "answer", "ground_truth"))
        inner = inner or (find(inside, "target") if len(inside) == 1 else "")
        if not inner:
            raise BadField(name, f"{AN_OBJECT} with {', '.join(map(str, inside))[:60]} is no gold")
        name, value = f"{name}.{inner}", inside[inner]
        fields["any_answer"] = source.any_answer or "answer_start" in inside
    if _holds_object(value):
        raise BadField(name, f"{AN_OBJECT} is no gold")
    if folded(name.rpartition(".")[2]) in map(folded, NAMES["alternatives"]):
        fields["any_answer"] = True
    fields["answer_field"] = name
    values = spelled_list(value)
    if isinstance(values, list):
        flag = str(field_of(row, find(row, "is_multiple_answer"))).lower() == "true"
        every = fields["all_answers"] = source.all_answers or flag
        value = values[0] if values else None
        numbers = {str(v).strip() for v in values if _NUMBER.fullmatch(str(v).strip())}
        if len(numbers) > 1 and not source.any_answer:  # no spellings of one name
            fields["any_answer"] = False
        if not every and (_are_equal(values) or (source.options_field and len(values) == 1)):
            fields |= {"answer_field": f"{name}.0", "any_answer": False}
            name = f"{name}.0"
    if isinstance(value, str) and not source.options_field:
        form, mark = gold_text.rule_of(value)
        fields |= {"answer_in_box": form == "box", "answer_after": mark}
        if form == "plain" and gold_text.is_program(value):
            raise BadField(name, f"{gold_text.A_PROGRAM}, and no field holds tests")
        if worked and form == "plain" and not gold_text.is_short(value.strip()):
            raise BadField(name, 'a solution without "####", a box or "the answer is"')
    reading = source.model_copy(update=fields)
    gold = answer_of(row, reading)
    if gold is None:
        raise BadField(name, "empty")
    if why := unjudgeable(Problem.model_construct(domain="math", prompt=prompt, answer=gold)):
        raise BadField(name, why)
    return reading, gold


def _holds_object(value: Any) -> bool:
    value = decoded(value)
    return any(map(_holds_object, value)) if isinstance(value, list) else isinstance(value, dict)


def _are_equal(values: list[Any]) -> bool:
    first, *others = [str(value) for value in values] or [""]
    return {first} < {first, *others} and all(_is_same(first, other) for other in others)


def _is_same(gold: str, other: str) -> bool:
    """Whether one of the golds of either side is one of the other's."""
    from ..math_answers.verify import quick_verdict  # a run begins without it

    for a, b in product(golds_of(gold), golds_of(other)):
        verdict = None if a == b else quick_verdict(a, b)
        if a == b or (verdict is not None and verdict.verdict == "AC"):
            return True
    return False
