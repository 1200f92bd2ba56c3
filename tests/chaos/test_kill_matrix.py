"""SIGKILL of everything that a run is made of, and of a vLLM server that a stage asks: nothing is
lost. The whole: `make chaos`."""

import random
from pathlib import Path

import pytest
from matrix import Strike, chaos
from place import SERVERS, place_in
from served import REQUESTS, Blow, run

SEED = 5  # the moments; the machine's load shifts them all the same
UNTIL = "filter_rl"
STRUCK = {
    "collect": ("child",), "decontaminate": SERVERS, "sample": (),
    "judge_rl": ("sandbox", "judge worker"), "filter_rl": (),
}  # fmt: skip
"""Stages in which the run is killed, and in some more than it: one that reads files, one in parts,
one that asks an engine, one that runs programs, and the last before training."""
# some minutes on a machine that does nothing else
pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]


def test_whoever_is_killed_the_results_are_those_of_an_undisturbed_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chance = random.Random(SEED)
    strikes = [
        Strike(stage, victims, round(chance.uniform(0, 0.4), 3))
        for stage, more in STRUCK.items()
        for victims in (("flow",), more)
        if victims
    ]
    with place_in(tmp_path_factory.mktemp("killed")) as place:
        report = chaos(place, UNTIL, strikes)
    assert report.broken == []
    # A stage may be over before its victim is found; then it is computed and hunted again.
    assert len(report.killed) >= len(STRUCK), report.unmet
    assert {"flow", "prefect", "mlflow", "worker"} <= set(report.by_victim)


def test_a_killed_vllm_server_costs_no_answer_and_changes_none(tmp_path: Path) -> None:
    moment = random.Random(SEED).uniform(0.1, 0.8)
    findings = run(tmp_path, [Blow("server", moment, late=True)])
    assert findings.broken == []
    assert findings.killed == ["server"]
    assert findings.starts == 2  # the one that gave up, and the same command again
    assert 0 < findings.kept[0] < REQUESTS  # it died in the middle, not before and not after
