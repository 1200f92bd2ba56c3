"""What tests of programs and of their sandbox share."""

from collections.abc import Iterator

import pytest

from klear.eval.programs.tested_sandbox import assert_isolated
from klear.eval.sandbox.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One that isolates: what a program does in it, no later program notices."""
    with Sandbox("bubblewrap") as running:
        assert_isolated(running)
        yield running
