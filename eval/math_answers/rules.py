"""What a rule of the comparison is: a name, a decision and its own cases.

Rules stand in lists, in the order in which they are tried: the first that decides has the word. The
cases are tested, and are the page "What the math judge accepts" of the docs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Ordering = Literal["", "sequence", "tuple"]
"""What the words of a prompt ask for: values in an order, a tuple, or nothing of the kind."""


@dataclass(frozen=True)
class Rule:
    """One kind of answers. `decide` says None where the kind is another one's."""

    name: str
    decide: Callable[..., Any]
    accepts: tuple[tuple[str, str], ...] = ()
    refuses: tuple[tuple[str, str], ...] = ()
    ordering: Ordering = ""


@dataclass(frozen=True)
class Context:
    """What a rule needs to compare parts: the comparison as a whole, and what the prompt asks."""

    same: Callable[[str, str], bool]
    ordering: Ordering = ""


def first_decision(rules: Iterable[Rule], *sides: Any) -> Any:
    """What the first rule says that decides; None where none does."""
    for rule in rules:
        if (decision := rule.decide(*sides)) is not None:
            return decision
    return None
