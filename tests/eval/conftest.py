"""What tests of verdicts share."""

from collections.abc import Iterator

import pytest

from klear.eval.math_answers.rules import Ordering
from klear.eval.math_answers.verify import quick_verdict
from klear.eval.programs.tested_sandbox import assert_isolated
from klear.eval.sandbox.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One that isolates: what a program does in it, no later program notices."""
    with Sandbox("bubblewrap") as running:
        assert_isolated(running)
        yield running


def verdict_of(gold: str, answer: str, ordering: Ordering = "") -> str:
    """On a math answer, as the judge and its worker give it."""
    from klear.eval.math_answers.worker import run  # sympy takes a second

    return (quick_verdict(gold, answer, ordering) or run(gold, answer, ordering)).verdict
