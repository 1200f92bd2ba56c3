"""What the filters of JSONL and of parquet files share: the decision, and the words for bad rows.

Kept rows are what they were, byte for byte (JSONL) or column for column (parquet). Rejected rows
have one more field, `reason`. Rows that cannot be read are rejected too, with their place.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tasks.overlaps import Decision, Rows

Decide = Callable[[Rows], Decision]
Counts = Counter[str]
"""Rows kept, rejected, (among the rejected) malformed, hits unlisted (see `Decision`) and
repeated_ids: rows whose id an earlier row has."""


class NoSuchField(Exception):
    """The file has no such text field; the message names those there are."""


def no_field(path: Path, field: str, fields: Iterable[str]) -> NoSuchField:
    return NoSuchField(f"{path} has no field {field!r}; it has: {', '.join(fields)}")


def row_id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return str(value) if has_id(value) else str(number)


def has_id(value: object) -> bool:
    return isinstance(value, (str, int)) and value != ""


def not_text(field: str, kind: str) -> str:
    return f"field {field!r} is {kind}, not text"


def reason_name(fields: Iterable[str]) -> str:
    """What the field for the reason is called beside these."""
    taken, name = set(fields), "reason"
    while name in taken:
        name = f"decontaminate_{name}"
    return name
