"""SIGKILL of everything that a run is made of, and of a vLLM server that a stage asks: nothing is
lost (the whole: `make chaos`). Runs that meet in one store: one computes, others wait and say so,
and nobody waits for the dead."""

import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import invariants
from chaos.matrix import Strike, chaos
from chaos.place import SERVERS, Attempt, Place, kill, place_in
from chaos.served import REQUESTS, Blow, run
from home import cached, computed, eventually

SEED = 5  # the moments; the machine's load shifts them all the same
UNTIL = "filter_rl"
STRUCK = {
    "collect": ("child",), "decontaminate": SERVERS, "distill": (),
    "judge": ("sandbox", "judge worker"), "filter_rl": (),
}  # fmt: skip
"""Stages in which the run is killed, and in some more than it: one that reads files, one in parts,
one that asks an engine, one that runs programs, and the last before training."""
WAITS = "another run computes it: waiting"
SHARED = ("collect", "benchmarks", "dedup", "decontaminate")
STAGES = (*SHARED, "distill", "judge", "difficulty")
MORE = ("--set", "distill.samples_per_prompt=8")  # long enough to be met in the judge
# some minutes on a machine that does nothing else
pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("chaos")) as running:
        yield running


def test_whoever_is_killed_the_results_are_those_of_an_undisturbed_run(place: Place) -> None:
    chance = random.Random(SEED)
    strikes = [
        Strike(stage, victims, round(chance.uniform(0, 0.4), 3))
        for stage, more in STRUCK.items()
        for victims in (("flow",), more)
        if victims
    ]
    report = chaos(place, UNTIL, strikes)
    assert report.broken == []
    # A stage may be over before its victim is found; then it is computed and hunted again.
    assert len(report.killed) >= len(STRUCK), report.unmet
    assert {"flow", "prefect", "mlflow", "worker"} <= set(report.by_victim)


@pytest.fixture
def attempts(place: Place) -> Iterator[list[Attempt]]:
    """Runs against an empty store; none outlives its test."""
    shutil.rmtree(place.store, ignore_errors=True)
    running: list[Attempt] = []
    yield running
    for attempt in running:
        if not attempt.has_ended():
            attempt.process.kill()
        attempt.process.wait()
    for process in place.processes_of_runs():
        kill(process)


def output(attempt: Attempt) -> str:
    """What a run printed that must succeed."""
    code = attempt.process.wait(900)
    assert code == 0, attempt.text()
    return attempt.text()


def stop_holder(attempts: list[Attempt], stage: str) -> tuple[Attempt, list[Attempt]]:
    """Whoever computes the stage stands still in the middle of it, and the others wait for it."""

    def holders() -> list[Attempt]:
        return [a for a in attempts if a.is_running(stage)]

    assert eventually(holders, pause_s=0.002), [a.text() for a in attempts]
    (holder,) = holders()
    os.kill(holder.process.pid, signal.SIGSTOP)
    assert not holder.is_over(stage), "the stage was too short to be met"
    others = [a for a in attempts if a is not holder]
    for other in others:
        waits = rf"{stage} +{WAITS}"
        assert eventually(lambda o=other, w=waits: re.search(w, o.text())), other.text()
    return holder, others


def test_of_runs_that_meet_one_computes_a_stage_and_nobody_waits_for_the_dead(
    place: Place, attempts: list[Attempt]
) -> None:
    def start(*words: str) -> Attempt:
        attempts.append(place.attempt(*words, until=STAGES[-1]))
        return attempts[-1]

    # of three identical runs the one that computes is killed; a fourth shares half of its stages
    equal, half = [start(*MORE) for _ in range(3)], start("--set", "distill.samples_per_prompt=2")
    holder, waiting = stop_holder(equal, "judge")
    os.kill(holder.process.pid, signal.SIGKILL)
    texts = [output(a) for a in waiting]
    for stage in ("judge", "difficulty"):
        assert sorted(stage in computed(text) for text in texts) == [False, True]
    ended = Counter(
        stage for text in (*texts, output(half), holder.text()) for stage in computed(text)
    )
    once, twice = dict.fromkeys(SHARED, 1), dict.fromkeys(STAGES[4:], 2)
    assert ended == {**once, **twice}
    assert Counter(p.parts[-3] for p in place.store.glob("*/*/manifest.json")) == {**once, **twice}

    # The dead one's MLflow run and its entry in the store wait for its command.
    assert sorted(cached(output(start(*MORE)))) == sorted(STAGES)
    assert invariants.sound(place) == []

    # of two runs that are forced to redo a stage at once, one does
    holder, (other,) = stop_holder([start(*MORE, "--force", "judge") for _ in range(2)], "judge")
    os.kill(holder.process.pid, signal.SIGCONT)
    texts = [output(a) for a in (holder, other)]
    assert [stage for text in texts for stage in computed(text)] == ["judge"]
    assert all("difficulty" in cached(text) for text in texts)  # equal bytes keep descendants
    assert "judge" in cached(texts[1])
    assert invariants.sound(place) == []


def test_a_killed_vllm_server_costs_no_answer_and_changes_none(tmp_path: Path) -> None:
    moment = random.Random(SEED).uniform(0.1, 0.8)
    findings = run(tmp_path, [Blow("server", moment, late=True)])
    assert findings.broken == []
    assert findings.killed == ["server"]
    assert findings.starts == 2  # the one that gave up, and the same command again
    assert 0 < findings.kept[0] < REQUESTS  # it died in the middle, not before and not after
