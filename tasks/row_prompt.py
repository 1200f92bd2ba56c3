"""The prompt of a raw row: a text, the user's turn of a chat, several fields, or a reference."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from configs.sources import Source
from tasks.row_fields import MISSING, BadField, field_of

LONGEST_PROMPT = 1_000_000
"""Characters. What is longer is no problem statement, and no model could read it."""
ROLES, TEXTS = ("role", "from"), ("content", "value")


class Texts(Protocol):
    """The texts of a lookup table by row number; len() is the number of rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str | None: ...


Tables = Mapping[str, Texts]


def prompt_of(row: dict[str, Any], source: Source, tables: Tables | None = None) -> str:
    """The problem statement, without boilerplate. Raises BadField."""
    name = source.prompt_parts[0].field if source.prompt_parts else source.prompt_field
    text = _parts(row, source) if source.prompt_parts else _plain(field_of(row, name), name)
    if source.lookup and text == source.lookup.placeholder:
        text = _looked_up(row, source, tables or {})
    text = _stripped(text, source.strip_prefixes, source.strip_suffixes)
    if not text:
        raise BadField(name, "empty")
    if len(text) > LONGEST_PROMPT:
        raise BadField(name, f"{len(text):,} characters; a prompt has {LONGEST_PROMPT:,} at most")
    return text


def _plain(value: Any, name: str) -> str:
    if isinstance(value, list | dict):
        value = _user_turn(value)
    if value is MISSING:
        raise BadField(name, "missing")
    if not isinstance(value, str):
        raise BadField(name, f"must be text, this is a {type(value).__name__}")
    return value.strip()


def _user_turn(chat: Any) -> Any:
    """The user's first turn; MISSING if there is none."""
    if isinstance(chat, dict):  # `datasets` keeps a list of objects as an object of lists
        roles, texts = (next((chat[k] for k in keys if k in chat), None) for keys in (ROLES, TEXTS))
        if not isinstance(roles, list) or not isinstance(texts, list):
            return chat
        chat = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    turns = (m for m in chat if isinstance(m, dict) and _first(m, ROLES) in ("user", "human"))
    value = _first(next(turns, {}), TEXTS)
    if isinstance(value, list):  # parts: text beside images
        kinds = {m.get("type") for m in value if isinstance(m, dict)}
        if kinds == {"text"}:
            return "\n".join(str(m.get("text", "")) for m in value)
    return MISSING if value is None else value


def _first(message: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((message[k] for k in keys if message.get(k) is not None), None)


def _parts(row: dict[str, Any], source: Source) -> str:
    texts: list[str] = []
    for number, part in enumerate(source.prompt_parts):
        value = field_of(row, part.field)
        if number and value is MISSING:
            continue
        is_examples = isinstance(value, list) and all(isinstance(e, dict) for e in value)
        text = _examples(value) if number and is_examples else _plain(value, part.field)
        if text:
            texts.append(f"{part.heading}\n\n{text}" if part.heading else text)
        elif not number:
            raise BadField(part.field, "empty")
    return "\n\n".join(texts)


def _examples(examples: list[dict[str, Any]]) -> str:
    shown = (f"Input:\n{e.get('input', '')}\nOutput:\n{e.get('output', '')}" for e in examples)
    return "\n\n".join(text.strip() for text in shown)


def _looked_up(row: dict[str, Any], source: Source, tables: Tables) -> str:
    lookup = source.lookup
    assert lookup is not None
    place = "/".join(str(field_of(row, name)) for name in lookup.table_fields)
    if place not in tables:
        known = ", ".join(tables) or "none"
        raise BadField(lookup.table_fields[0], f"no lookup table {place!r} (known: {known})")
    index = field_of(row, lookup.index_field)
    number = int(index) if str(index).isdecimal() else -1
    if not 0 <= number < len(tables[place]):
        raise BadField(lookup.index_field, f"{place} has {len(tables[place]):,} rows, no {index!r}")
    text = (tables[place][number] or "").strip()
    if not text:
        raise BadField(lookup.index_field, f"row {number} of {place} has no text")
    return text


def _stripped(text: str, prefixes: Sequence[str], suffixes: Sequence[str]) -> str:
    """Without boilerplate and the white space around it, whatever the order it comes in."""
    before = None
    while text != before:
        before = text = text.strip()
        for prefix in prefixes:
            text = text.removeprefix(prefix.strip())
        for suffix in suffixes:
            text = text.removesuffix(suffix.strip())
    return text
