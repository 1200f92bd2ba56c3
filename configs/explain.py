"""Turns what pydantic found wrong into lines a person can act on: where, what, the nearest key."""

import difflib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Loc = tuple[int | str, ...]


class ConfigError(Exception):
    """Wrong configuration: `problems` holds one line each, all of them at once."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per problem: dotted path, what is wrong, and the nearest valid key."""
    return [_line(e, model) for e in error.errors(include_url=False)]


def nearest(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X?` for the closest choice, or nothing if none is close."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def dotted(loc: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in loc)


def _line(error: ErrorDetails, model: type[BaseModel]) -> str:
    loc, kind, given = error["loc"], error["type"], error["input"]
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{dotted(loc)}: unknown key{_nearest_key(loc, model)}"
    if kind == "missing":
        return f"{dotted(loc)}: missing; it has no default"
    if kind == "value_error":
        where = f"{dotted(loc)}: " if loc else ""
        return f"{where}{context.get('error', error['msg'])}"
    if kind == "literal_error":
        choices = _choices(loc, model)
        say = f"{given!r} is none of {', '.join(choices)}" if choices else error["msg"]
        return f"{dotted(loc)}: {say}{nearest(str(given), choices)}"
    return f"{dotted(loc)}: {_what(kind, given, context, error['msg'])}"


_NOT_A = {
    "float": "number",
    "int": "whole number",
    "bool": "yes or no (write true or false)",
    "string": "text (put it in quotes)",
    "tuple": "list",
    "list": "list",
    "model": "group of settings",
    "dict": "group of settings",
    "path": "path",
}
_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda c: f"above {c['gt']}",
    "greater_than_equal": lambda c: f"at least {c['ge']}",
    "less_than": lambda c: f"below {c['lt']}",
    "less_than_equal": lambda c: f"at most {c['le']}",
}


def _what(kind: str, given: Any, context: dict[str, Any], message: str) -> str:
    if kind in _BOUNDS:
        return f"{given!r} must be {_BOUNDS[kind](context)}"
    if kind == "int_from_float":
        return f"{given!r} is no whole number"
    noun = _NOT_A.get(kind.split("_")[0])
    if noun and kind.split("_")[-1] in ("parsing", "type"):
        return "nothing is given" if given is None else f"{given!r} is no {noun}"
    return f"{message} (given: {given!r})"


def _nearest_key(loc: Loc, model: type[BaseModel]) -> str:
    """A sibling with a similar name, else keys of that name anywhere (first, at the top level)."""
    *parents, wrong = loc
    siblings = _fields_at(tuple(parents), model)
    similar = difflib.get_close_matches(str(wrong), siblings, n=1, cutoff=0.6)
    elsewhere = [p for p in _all_paths(model) if p.rsplit(".", 1)[-1] == wrong]
    if elsewhere and not (parents and similar):
        return f"; did you mean {' or '.join(elsewhere[:4])}?"
    if similar:
        return f"; did you mean {dotted([*parents, similar[0]])}?"
    return f"; known here: {', '.join(siblings)}" if siblings else ""


def _fields_at(loc: Loc, model: type[BaseModel]) -> list[str]:
    annotation: Any = model
    for part in loc:
        annotation = _step(annotation, part)
    group = _model_in(annotation)
    return list(group.model_fields) if group else []


def _choices(loc: Loc, model: type[BaseModel]) -> list[str]:
    annotation: Any = model
    for part in loc:
        annotation = _step(annotation, part)
    return [str(c) for c in _literals(annotation)]


def _step(annotation: Any, part: int | str) -> Any:
    """The annotation one path element further in, or None where the path leaves the tree."""
    if isinstance(part, int):
        members = [a for a in _members(annotation) if get_origin(a) in (tuple, list)]
        return get_args(members[0])[0] if members else None
    group = _model_in(annotation)
    field = group.model_fields.get(part) if group else None
    return field.annotation if field else None


def _members(annotation: Any) -> Iterator[Any]:
    """The annotation without Annotated, or each member of a union."""
    if get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None


def _literals(annotation: Any) -> list[Any]:
    return [
        value
        for member in _members(annotation)
        if str(get_origin(member)) == "typing.Literal"
        for value in get_args(member)
    ]


def _all_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        group = _model_in(field.annotation)
        if group:
            yield from _all_paths(group, f"{prefix}{name}.")
