"""Fields of a raw row, by name; what is wrong with one is said with its name."""

import json
from typing import Any

MISSING = object()
"""Stands for a field that a row does not have."""


class BadField(ValueError):
    """A field that cannot be used; the message is `field NAME: what is wrong`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"field {field}: {problem}")


def field_of(row: dict[str, Any], name: str) -> Any:
    """The value at `name`, or MISSING, which also stands for null.

    A dot reaches into an object, also one written as a JSON string, and into a list by number.
    """
    value = row[name] if name in row else _reached(row, name.split("."))
    return MISSING if value is None else value


def _reached(value: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return MISSING
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return MISSING
    return value


def text_of(row: dict[str, Any], name: str) -> str:
    """The text at `name`; empty when there is none or it is no text."""
    value = field_of(row, name) if name else ""
    return value if isinstance(value, str) else ""
