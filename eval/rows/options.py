"""Multiple choice: the options that a row lists, as part of the prompt, and the letter of the gold.
Options are a list (`Iron`, or `A) Iron`), an object of texts and labels, an object by letter, a
list of objects, one text, or a field each; the gold a letter, a number or the option."""

import hashlib
import re
from typing import Any

from .fields import BadField, decoded, field_of, spelled_list

LETTERS = "ABCDEFGHIJ"  # those that the judge reads as a choice
BOTH = "the file's numbers of options begin at 0 or at 1: say it by --fields options_from=0 or 1"
ASKED = "Answer with the letter of the right option."
_LABELLED = re.compile(r"\s*[(\[]?([A-Za-z])\s*[).:\]]\s*(.*)", re.DOTALL)
_IN_A_TEXT = re.compile(r"(?:^|(?<=[\s,;]))[(\[]?([A-Za-z])\s?[).:\]]\s+(?=\S)")
_TEXTS, _LABELS = ("text", "content", "value", "option"), ("label", "aoVal", "key", "letter", "id")


def options_of(row: dict[str, Any], names: str) -> list[tuple[str, str]]:
    """(label, text) of each option in the fields `names`, joined by +. A field with several has its
    own labels; of several fields the labels are the ends of their names. Raises BadField."""
    fields = [name.strip() for name in names.split("+")]
    if len(fields) == 1:
        options = _listed(decoded(field_of(row, names)))
    else:
        ends = [re.findall(r"[A-Za-z]|\d+", name)[-1:] for name in fields]
        values = [_texts(field_of(row, name)) for name in fields]
        pairs = zip(("".join(end) for end in ends), values, strict=True)
        options = [(label, text) for label, texts in pairs for text in texts]
    texts = [str(t).strip() if isinstance(t, str | int | float) else None for _, t in options]
    if not 1 <= len(options) <= len(LETTERS) or None in texts:
        raise BadField(names, f"must be 1 to {len(LETTERS)} options")
    return [(label.strip(), str(text)) for (label, _), text in zip(options, texts, strict=True)]


def _texts(value: Any) -> list[Any]:
    """The options in one of several fields: one, none, or a list of the wrong ones."""
    value = spelled_list(value)
    values = value if isinstance(value, list) else [value]
    return [each for each in values if each not in (None, "")]


def _listed(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, dict):
        texts = _first(value, _TEXTS)
        if isinstance(texts, list):
            labels = value.get("label")
            labels = labels if isinstance(labels, list) else [""] * len(texts)
            return [(str(label), text) for label, text in zip(labels, texts, strict=False)]
        return [(str(label), text) for label, text in value.items() if text not in (None, "")]
    if not isinstance(value, list):
        return []
    each = [v[0] if isinstance(v, list) and len(v) == 1 else v for v in value]
    if all(isinstance(v, dict) for v in each):
        return [(str(_first(v, _LABELS) or ""), _first(v, _TEXTS)) for v in each]
    matches = [_LABELLED.fullmatch(v) if isinstance(v, str) else None for v in each]
    labels = "".join(m[1] for m in matches if m).upper()
    if len(labels) == len(each) and LETTERS.startswith(labels):
        return [(m[1], m[2]) for m in matches if m]
    return [("", v) for v in each]


def _first(value: Any, names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if name in value), None)


def _of_text(text: str) -> list[tuple[str, Any]]:
    """`a ) 38 , b ) 27 , c ) none` and the like, a line or several."""
    marks = list(_IN_A_TEXT.finditer(text))
    labels = "".join(match[1] for match in marks).upper()
    if len(marks) < 2 or not LETTERS.startswith(labels):
        return []
    ends = [match.start() for match in marks[1:]] + [len(text)]
    parts = (text[m.end() : end] for m, end in zip(marks, ends, strict=True))
    return [(m[1], part.strip(" ,;\n")) for m, part in zip(marks, parts, strict=True)]


def place_in(gold: Any) -> int | None:
    """The number of an option that a gold is, as a number or a text; else None."""
    if isinstance(gold, bool) or not isinstance(gold, int | float | str):
        return None
    text = str(gold).strip("()[].: ").removesuffix(".0")
    return int(text) if text.isdecimal() and len(text) < 4 else None


def shuffled(options: list[tuple[str, str]], prompt: str) -> list[tuple[str, str]]:
    """In an order that the prompt draws: for datasets that name the right one first. In the order
    of the prompt where that lists them. Raises BadField where its order cannot be read."""
    if _lists(prompt, options):
        order = [text for _, text in _of_text(prompt)]
        if sorted(order) != sorted(text for _, text in options):
            raise BadField("options", "are in the prompt, too, in an order that cannot be read")
        return sorted(options, key=lambda option: order.index(option[1]))
    seed = prompt.encode("utf-8", "replace")
    digests = {o: hashlib.sha256(seed + o[1].encode("utf-8", "replace")).digest() for o in options}
    return sorted(options, key=digests.__getitem__)


def _lists(prompt: str, options: list[tuple[str, str]]) -> bool:
    labelled = re.search(r"(?m)^\s*[(\[]?A\s*[).:\]]", prompt)
    return bool(labelled) and all(text in prompt for _, text in options)


def with_options(prompt: str, options: list[tuple[str, str]]) -> str:
    """The prompt with its options by letter, unless it has them already."""
    if _lists(prompt, options):
        return prompt
    lines = [f"{letter}) {text}" for letter, (_, text) in zip(LETTERS, options, strict=False)]
    return "\n\n".join([prompt, "\n".join(lines), ASKED])


def letter_of(gold: Any, options: list[tuple[str, str]], name: str, first: int = 0) -> str:
    """The letter of the right option, by label, text or place, where `first` is the number of the
    first option and -1 says that nobody can tell. Raises BadField."""
    texts, labels = [_folded(text) for _, text in options], [_folded(label) for label, _ in options]
    word, number = _folded(gold), place_in(gold)
    bare, labelled = word.strip("()[].: "), _LABELLED.fullmatch(word)
    by_text = texts.index(word) if texts.count(word) == 1 else -1
    letter = LETTERS.find(bare.upper()) if len(bare) == 1 else -1
    if bare and bare in labels:
        place = labels.index(bare)
        if by_text not in (-1, place):
            raise BadField(name, f"{gold!r} is an option, and the label of another one")
        return LETTERS[place]
    if number is not None and 0 <= number - max(first, 0) < len(options) + (first < 0):
        place = number - first
        if first < 0:
            raise BadField(name, f"{gold!r}: {BOTH}")
        if by_text not in (-1, place):
            raise BadField(name, f"{gold!r} is an option, and the place of another one")
    elif by_text >= 0:
        place = by_text
        if letter not in (-1, place) and letter < len(options):
            raise BadField(name, f"{gold!r} is an option, and the letter of another one")
    elif number is not None:
        count = f"{len(options)} options, counted from {max(first, 0)}"
        raise BadField(name, f"{gold!r} is the place of none of {count}")
    elif 0 <= letter < len(options):
        place = letter
    elif labelled and labelled[2] in texts:
        place = texts.index(labelled[2])
    else:
        raise BadField(name, f"{str(gold)[:60]!r} is none of the {len(options)} options")
    return LETTERS[place]


def _folded(value: Any) -> str:
    return " ".join(str(value).casefold().split())
