"""The two lists for CPUs are one resolution: what a run needs; vLLM, and what only tests need."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str) -> dict[str, str]:
    lines = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in lines}


def direct() -> list[Requirement]:
    lines = (ROOT / "requirements.in").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def needed_in_turn(requirements: list[Requirement]) -> set[str]:
    """The names of these, of what they need, and so on."""
    pairs, left = (
        set[tuple[str, str]](),
        [(r.name, e) for r in requirements for e in ("", *r.extras)],
    )
    while left:
        name, extra = left.pop()
        if (canonical(name), extra) in pairs:
            continue
        pairs.add((canonical(name), extra))
        for needed in map(Requirement, requires(name) or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                left += [(needed.name, e) for e in ("", *needed.extras)]
    return {name for name, _ in pairs}


def test_a_run_gets_what_its_code_needs_in_turn_and_nothing_else():
    """What a new import needs goes to the first list, a tool of the tests to the second."""
    assert set(pins("requirements-cpu.lock")) == needed_in_turn(direct())
    assert not set(pins("requirements-cpu.lock")) & set(pins("requirements-cpu-test.lock"))


@pytest.mark.parametrize("lock", ["requirements-cpu.lock", "requirements-gpu.lock"])
def test_a_lock_keeps_to_the_bounds_of_the_direct_requirements(lock: str) -> None:
    versions = pins(lock)
    for requirement in direct():
        assert versions[canonical(requirement.name)] in requirement.specifier, requirement
