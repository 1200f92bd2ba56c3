"""What a rule of the comparison is: a name, a decision and, in `cases.toml`, its cases, which are
tested and shown by the docs. The first rule of a list that decides has the word.
"""

import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

Ordering = Literal["", "sequence", "tuple"]
"""What the words of a prompt ask for: values in an order, a tuple, or nothing of the kind."""


@cache
def _cases() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))


class Rule(NamedTuple):
    """One kind of answers. `decide` says None where the kind is another one's."""

    name: str
    decide: Callable[..., Any]

    @property
    def cases(self) -> dict[str, Any]:
        """Pairs of gold and answer that it `accepts` and `refuses`, for what `ordering`."""
        return {"accepts": [], "refuses": [], "ordering": "", **_cases().get(self.name, {})}


class Context(NamedTuple):
    """What a rule needs to compare parts: the comparison as a whole, and what the prompt asks."""

    same: Callable[[str, str], bool]
    ordering: Ordering = ""


def first_decision(rules: Iterable[Rule], *sides: Any) -> Any:
    """What the first rule says that decides; None where none does."""
    for rule in rules:
        if (decision := rule.decide(*sides)) is not None:
            return decision
    return None
