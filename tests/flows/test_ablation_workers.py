"""Cells run beside each other, what they share is not computed twice, and failures are told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import ablation_workers
from flows.ablation_workers import CellFailed, Job, in_parallel
from flows.relayed_display import Relay, replay
from tasks.store import Artifact

ROOT = Path(__file__).parents[2]
# Answers every line with an artifact that says which process made it; "bad" fails, "dead" dies.
WORKER = """
import json, os, sys
for line in sys.stdin:
    told = json.loads(line)
    with open(told["events"], "a") as file:
        file.write(json.dumps(["started", "sft", "new"]) + "\\n")
    if told["arm"] == "dead":
        print("out of memory", flush=True)
        os._exit(9)
    made = {"stage": told["arm"], "key": str(os.getpid()), "digest": "d", "folder": "/x"}
    answer = {"error": "no such model"} if told["arm"] == "bad" else {"artifacts": [made, made]}
    with open(told["result"] + ".part", "w") as file:
        json.dump(answer, file)
    os.replace(told["result"] + ".part", told["result"])
"""


class Shown:
    """A display that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple] = []

    def started(self, stage, why):
        self.lines.append(("started", stage, why))

    def progress(self, stage, done, total, note):
        self.lines.append(("progress", stage, done, total, note))

    def finished(self, stage, outcome, seconds, metrics):
        self.lines.append(("finished", stage, outcome, seconds, metrics))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run cells of these arms (seed 0) with stub workers: `run(concurrent, *arms)`."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(ablation_workers, "COMMAND", [sys.executable, str(script)])
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    shown = Shown()

    def cells(concurrent: int, *arms: str):
        jobs = {Job("x", "tiny", arm, 0, "parent"): {arm} for arm in arms}
        return in_parallel(jobs, concurrent, shown), shown

    cells.shown = shown
    return cells


def test_every_cell_is_computed_once_by_one_of_the_workers(run):
    made, shown = run(2, "a", "b", "c", "d", "e")
    assert {name: artifacts[0].stage for name, artifacts in made.items()} == {
        f"{arm}-seed0": arm for arm in "abcde"
    }
    assert all(isinstance(artifact, Artifact) for pair in made.values() for artifact in pair)
    assert len({pair[0].key for pair in made.values()}) <= 2  # processes
    assert sorted(line[1] for line in shown.lines) == [f"{arm}-seed0 sft" for arm in "abcde"]


def test_training_beside_others_has_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert ablation_workers._environment(3)["OMP_NUM_THREADS"] == "2"
    assert ablation_workers._environment(20)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert ablation_workers._environment(2)["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(("told", "threads"), [({"OMP_NUM_THREADS": "1"}, "1"), ({}, "all")])
def test_a_child_trains_with_the_threads_it_is_told(told, threads):
    asked = "import torch; from training.child import _limit_threads as f; f(0)"
    rest = {n: v for n, v in os.environ.items() if n != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", f"{asked}; print(torch.get_num_threads())"],
        cwd=ROOT, env=rest | told, capture_output=True, text=True, check=True,
    )  # fmt: skip
    everything = str(len(os.sched_getaffinity(0)))
    assert done.stdout.strip() == threads.replace("all", everything)


def test_a_cell_that_fails_is_named_and_no_other_is_started(run):
    with pytest.raises(CellFailed, match="bad-seed0: no such model"):
        run(1, "a", "bad", "b")
    assert [line[1] for line in run.shown.lines] == ["a-seed0 sft", "bad-seed0 sft"]


def test_a_worker_that_dies_leaves_the_end_of_its_log(run):
    with pytest.raises(CellFailed, match=r"(?s)dead-seed0: its process died.*out of memory"):
        run(2, "dead", "a")


def test_the_next_cell_shares_least_with_those_under_way():
    def job(arm: str, seed: int) -> Job:
        return Job("x", "tiny", arm, seed, "")

    stages = {
        job("a", 0): {"data0", "sft0", "rl-a0"},
        job("b", 0): {"data0", "sft0", "rl-b0"},
        job("a", 1): {"data1", "sft1", "rl-a1"},
    }
    first = ablation_workers._next(stages, [])
    assert first == job("a", 0)
    del stages[first]
    second = ablation_workers._next(stages, [{"data0", "sft0", "rl-a0"}])
    assert second == job("a", 1)  # b of seed 0 would wait for the same model


def test_what_one_process_shows_another_shows_with_its_name(tmp_path):
    path = tmp_path / "events"
    relay, shown, tail = Relay(path), Shown(), ablation_workers._Tail(path)
    replay(tail, shown, "α=0-seed1")
    relay.started("sft", "new")
    relay.progress("sft", 1, 4, "loss 2")
    with path.open("a") as file:
        file.write('["finished", "sf')  # not a whole line yet
    replay(tail, shown, "α=0-seed1")
    assert shown.lines == [
        ("started", "α=0-seed1 sft", "new"),
        ("progress", "α=0-seed1 sft", 1, 4, "loss 2"),
    ]
    whole = json.dumps(["finished", "sft", "computed", 1.5, {"steps": 2.0}])
    path.write_text(path.read_text().replace('["finished", "sf', whole + "\n"))
    replay(tail, shown, "α=0-seed1")
    assert shown.lines[2] == ("finished", "α=0-seed1 sft", "computed", 1.5, {"steps": 2.0})


def test_workers_run_the_code_of_this_process(monkeypatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "the form's")
    environment = ablation_workers._environment(1)
    assert Path(environment["PYTHONPATH"].split(":")[0]) == ROOT
    assert "PREFECT__FLOW_RUN_ID" not in environment
