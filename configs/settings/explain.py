"""Turns what pydantic found wrong into lines a person can act on: where, what, the nearest key."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

MOVED = {
    **{
        f"rl_*.{name}": f"it is GROUP.loss.{name} now"
        for name in ("beta1", "beta2", "eps_low", "eps_high", "dual_clip")
    },
    "rl_*.shape": "constants are in GROUP.loss now, as {name: dgpo, n: 2}",
    "judge*.judge": "what was in it is in GROUP itself now, as GROUP.max_tests",
}
"""Keys of former versions, and what became of them; GROUP is the group that they were in."""


class ConfigError(Exception):
    """Wrong configuration: `problems` holds one line each, all of them at once."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per problem: dotted path, what is wrong, and the nearest valid key."""
    lines = list[str]()
    for problem in error.errors(include_url=False):
        match problem:
            case {"type": "extra_forbidden", "loc": loc}:
                what = f"unknown key{_nearest_key(loc, model)}"
            case {"type": "missing"}:
                what = "missing; it has no default"
            case {"type": "value_error", "ctx": context}:
                what = str(context["error"])
            case {"input": value, "msg": message}:
                what = f"{value!r} {message.removeprefix('Input ')}"
        key = ".".join(map(str, problem["loc"]))
        lines.append(f"{key}: {what}".removeprefix(": "))
    return lines


def nearest(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X?` for the closest choice, or nothing if none is close."""
    close = get_close_matches(word, list(choices), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _nearest_key(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Where a key of former versions is now; else the places of the nearest key, here first."""
    *parents, wrong = loc
    keys, here = list(_paths(model)), tuple(part for part in parents if isinstance(part, str))
    for pattern, change in MOVED.items():
        if fnmatchcase(".".join(map(str, loc)), pattern):
            return f"; {change.replace('GROUP', '.'.join(here))}"
    close = get_close_matches(str(wrong), [key[-1] for key in keys], n=1, cutoff=0.7)
    places = [".".join(key) for key in keys if key[-1:] == tuple(close)]
    if (*here, *close) in keys and close:
        places = [".".join(map(str, [*parents, *close]))]
    return f"; did you mean {' or '.join(places[:4])}?" if places else ""


def _paths(annotation: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key below a group; unions and lists are looked through."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield (*above, name)
            yield from _paths(field.annotation, (*above, name))
    for inner in get_args(annotation):
        yield from _paths(inner, above)
