"""Runs that meet in one store: one computes, others wait and say so, and nobody waits for the dead.

A run that is stopped (SIGSTOP) while it computes holds its stage as long as the test wants.
"""

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import invariants
import pytest
from home import cached, eventually
from place import Attempt, Place, kill

UNTIL = "judge"
LONG = ("--set", "distill.samples_per_prompt=8")  # long enough to be met in the judge
STAGES = ("collect", "benchmarks", "dedup", "decontaminate", "distill", "judge")
SHARED = STAGES[:4]
WAITS = "another run computes it: waiting"
Start = Callable[..., Attempt]
pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """Runs against an empty store; none outlives its test."""
    shutil.rmtree(place.store, ignore_errors=True)
    attempts: list[Attempt] = []

    def begin(*words: str, until: str = UNTIL) -> Attempt:
        attempts.append(place.attempt(*words, until=until))
        return attempts[-1]

    yield begin
    for attempt in attempts:
        if attempt.process.poll() is None:
            attempt.process.kill()
        attempt.process.wait()
    for process in place.processes_of_runs():
        kill(process)


def ended(attempt: Attempt) -> str:
    """What a run said; it must have succeeded."""
    code = attempt.process.wait(900)
    assert code == 0, attempt.text()
    return attempt.text()


def send(attempt: Attempt, number: signal.Signals) -> None:
    os.kill(attempt.process.pid, number)


def stop_holder(attempts: list[Attempt], stage: str) -> Attempt:
    """Whoever computes the stage first stands still in the middle of it."""

    def holders() -> list[Attempt]:
        return [a for a in attempts if a.is_running(stage)]

    assert eventually(holders, pause_s=0.002), [a.text() for a in attempts]
    (holder,) = holders()
    send(holder, signal.SIGSTOP)
    assert not holder.is_over(stage), "the stage was too short to be met"
    return holder


def waits(attempt: Attempt, stage: str) -> bool:
    return eventually(lambda: re.search(rf"{stage} +{WAITS}", attempt.text()))


def met_in_the_judge(both: list[Attempt]) -> dict[str, Counter[str]]:
    """What two runs computed and reused, the second of which met the first in the judge."""
    holder = stop_holder(both, "judge")
    (other,) = [a for a in both if a is not holder]
    assert waits(other, "judge"), other.text()
    send(holder, signal.SIGCONT)
    return outcomes(ended(holder), ended(other))


def outcomes(*texts: str) -> dict[str, Counter[str]]:
    """Stage → how often it was computed (✓) and reused (=)."""
    by_stage: dict[str, Counter[str]] = {}
    for text in texts:
        ended = re.findall(r"^([✓✗]) (\w+) ", text, re.MULTILINE)
        for mark, stage in [*ended, *(("=", stage) for stage in cached(text))]:
            by_stage.setdefault(stage, Counter())[mark] += 1
    return by_stage


def test_two_runs_that_share_half_of_their_stages_compute_each_of_them_once(
    place: Place, start: Start
) -> None:
    first, second = start(), start("--set", "distill.samples_per_prompt=2")
    actions = outcomes(ended(first), ended(second))
    assert actions == {
        **{s: Counter({"✓": 1, "=": 1}) for s in SHARED},
        **{s: Counter({"✓": 2}) for s in STAGES[4:]},
    }
    counts = Counter(p.parts[-3] for p in place.store.glob("*/*/manifest.json"))
    assert counts == {**dict.fromkeys(SHARED, 1), **dict.fromkeys(STAGES[4:], 2)}
    assert invariants.sound(place) == []


def test_a_stage_forced_twice_at_once_is_redone_once(place: Place, start: Start) -> None:
    ended(start(*LONG, until="difficulty"))
    forced = [start(*LONG, "--force", "judge", until="difficulty") for _ in range(2)]
    actions = met_in_the_judge(forced)
    assert actions["judge"] == Counter({"✓": 1, "=": 1})
    assert actions["difficulty"] == Counter({"=": 2})  # equal bytes keep their descendants
    assert invariants.sound(place) == []


def test_when_the_holder_is_killed_one_of_those_that_wait_takes_over(
    place: Place, start: Start
) -> None:
    three = [start(*LONG) for _ in range(3)]
    holder = stop_holder(three, "judge")
    waiting = [a for a in three if a is not holder]
    assert all(waits(w, "judge") for w in waiting), [w.text() for w in waiting]
    send(holder, signal.SIGKILL)
    texts = [ended(w) for w in waiting]
    assert outcomes(*texts)["judge"] == Counter({"✓": 1, "=": 1})
    # The dead one's MLflow run and its entry in the store wait for its command.
    assert outcomes(ended(start(*LONG))) == {s: Counter({"=": 1}) for s in STAGES}
    assert invariants.sound(place) == []


def test_of_two_identical_runs_one_computes_and_the_other_waits_says_so_and_reuses(
    place: Place, start: Start
) -> None:
    actions = met_in_the_judge([start(*LONG), start(*LONG)])
    assert actions == {s: Counter({"✓": 1, "=": 1}) for s in STAGES}
    assert not Path(place.store / ".trash").exists()
    assert invariants.sound(place) == []
