"""Values inside a row: by dotted names, in JSON and Python texts; chats; names in any spelling."""

import json
import re
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...configs.settings.explain import nearest
from ..programs.literals import literal

_TABLE = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
HEADINGS: dict[str, str] = _TABLE.pop("headings")
NAMES = {kind: tuple(names.split()) for kind, names in _TABLE.items()}
USER, ASSISTANT = ("user", "human"), ("assistant", "gpt", "model", "bot")
LONGEST_LITERAL = 16 << 20  # characters: Python takes some fifty times as much memory to read them


class BadField(ValueError):
    """A field that cannot be used; the message is `field NAME: what is wrong`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field

    def __str__(self) -> str:
        return "field {}: {}".format(*self.args)


class Turn(NamedTuple):
    role: str
    text: Any


def decoded(value: Any) -> Any:
    """The object or list that a text spells, as JSON or as Python writes it; else the value."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():  # of odd numbers in what may be no Python
            warnings.simplefilter("ignore")
            return literal(value) if len(value) < LONGEST_LITERAL else value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


def spelled_list(value: Any) -> Any:
    """The list that a text spells where it begins with a text (Skywork-OR1), else the value: a gold
    of `[1, 2]` is an interval."""
    return decoded(value) if isinstance(value, str) and value[:2] in ('["', "['") else value


def field_of(row: dict[str, Any], name: str) -> Any:
    """The value at `name`; None where there is none. A dot reaches into an object, also one written
    as a JSON or Python text, and into a list by number."""
    if not name:
        return None
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = decoded(value)
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return None
    return value


def text_of(row: dict[str, Any], name: str) -> str:
    value = field_of(row, name)
    return value if isinstance(value, str) else ""


def turns_of(value: Any) -> list[Turn] | None:
    """The turns of a chat in order, whose texts may come in parts; None for what is no chat."""
    value = decoded(value)
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        return None
    if not any("role" in turn or "from" in turn for turn in value):
        return None
    turns: list[Turn] = []
    for turn in value:
        text = next((turn[n] for n in ("content", "value") if turn.get(n) is not None), None)
        if isinstance(text, list) and text and all(isinstance(part, dict) for part in text):
            texts = [part.get("text") for part in text]
            text = "\n".join(texts) if all(isinstance(t, str) for t in texts) else text
        turns.append(Turn(str(turn.get("role") or turn.get("from") or ""), text))
    return turns


def question_turn(turns: list[Turn]) -> int:
    """The place of the last turn of the user that holds anything; -1 where there is none."""
    questions = (i for i, turn in enumerate(turns) if turn.role in USER and turn.text is not None)
    return max(questions, default=-1)


def answer_turn(turns: list[Turn]) -> Any:
    """What the assistant answers to the question; None where it does not."""
    after = turns[question_turn(turns) + 1 :]
    return next((turn.text for turn in after if turn.role in ASSISTANT), None)


def plain_text(value: Any, name: str) -> str:
    """The text, or of a chat the user's last question with the turns before. Raises BadField."""
    turns = turns_of(value)
    if turns:
        place = question_turn(turns)
        value = turns[place].text if place >= 0 else None
        before = [t for t in turns[: max(place, 0)] if isinstance(t.text, str)]
        roles = {**dict.fromkeys(USER, "User"), **dict.fromkeys(ASSISTANT, "Assistant")}
        earlier = [f"{roles[t.role]}: {t.text.strip()}" for t in before if t.role in roles]
        if earlier and isinstance(value, str):
            value = "\n\n".join([*earlier, f"User: {value.strip()}"])
    if value is None or value == []:
        raise BadField(name, "missing")
    if not isinstance(value, str):
        raise BadField(name, f"must be text, this is a {type(value).__name__}")
    return value.strip()


def as_one_text(value: Any) -> Any:
    """A list of texts as one text; else the value."""
    texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return "\n\n".join(value) if texts else value


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
    return "" if _is_empty(value) else ".".join(path)


def _is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, NaN, or such in each place of a list or an object."""
    if isinstance(value, dict | list):
        values = value.values() if isinstance(value, dict) else value
        return all(each in (None, "", [], {}) for each in values)
    return value is None or value != value or value in ("", "[]", "{}")


def folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def all_of(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [name for wanted in names if (name := find(row, wanted))]


def first_of(row: dict[str, Any], names: Sequence[str]) -> str:
    return next((name for wanted in names if (name := find(row, wanted))), "")


def absent(what: str, names: Sequence[str], row: dict[str, Any]) -> BadField:
    """That none of the fields holds it, with all that were looked for and the nearest ones."""
    empty = [key for key in row if folded(key) in map(folded, names)]
    if empty:
        return BadField(empty[0], "empty")
    has = ", ".join(row) or "none"
    near = dict.fromkeys(n for key in row if (n := nearest(key, list(names))))
    close = f" ({'; '.join(key.strip('; ') for key in near)})" if near else ""
    looked = ", ".join(dict.fromkeys(names))
    return BadField("row", f"no field holds {what}; its fields: {has}{close}; looked for: {looked}")


def quoted(name: str) -> str:
    """A field's name as one types it in a shell."""
    return name if re.fullmatch(r"[\w.+-]+", name) else f'"{name}"'
