"""What tests of programs and of their sandbox share."""

from collections.abc import Iterator

import pytest

from eval.sandbox.sandbox import Sandbox
from eval.sandbox.selftest import assert_isolated


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One that isolates: what a program does in it, no later program notices."""
    with Sandbox("bubblewrap") as running:
        assert_isolated(running)
        yield running
