"""Cells run beside each other as processes, what they share waits, and failures are told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.settings.ablation import load_ablation
from flows.ablations import ablation
from flows.ablations.ablation import CellFailed
from flows.ablations.cell import cells
from tasks.stage.run import Run
from tasks.store.store import Store

ROOT = Path(__file__).parents[2]
# Makes artifacts that tell the arm and its environment; one arm fails.
CELL = """
import json, os, sys
name, profile, arm, seed, parent, result = sys.argv[1:]
if arm == "α=0.05" and os.environ.get("FAILS"):
    sys.exit("no such model")
key = "-".join([os.environ["OMP_NUM_THREADS"], os.environ.get("PREFECT__FLOW_RUN_ID", "none")])
made = {"stage": arm, "key": key, "digest": "d", "folder": "/x"}
open(result, "w").write(json.dumps([made, made]))
"""
SPEC = load_ablation("table6_lm_weight")


@pytest.fixture
def in_parallel(tmp_path, monkeypatch):
    """`in_parallel(concurrent)`: every cell of one seed by a stub process."""
    (tmp_path / "cell.py").write_text(CELL)
    monkeypatch.setattr(ablation, "COMMAND", [sys.executable, str(tmp_path / "cell.py")])
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "the form's")
    run, matrix = Run(store=Store(tmp_path / "store")), list(cells(SPEC, "tiny", 1))
    return lambda concurrent: ablation._beside_each_other(SPEC.name, SPEC, matrix, run, concurrent)


def test_every_cell_is_computed_on_its_share_of_the_cores(in_parallel, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = in_parallel(2)
    assert {name: model.stage for name, (_, model) in made.items()} == {
        f"{arm.name}-seed0": arm.name for arm in SPEC.arms
    }
    assert {model.key for _, model in made.values()} == {"2-none"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # somebody's own choice
    assert {model.key for _, model in in_parallel(2).values()} == {"5-none"}


def test_a_cell_that_fails_is_named_with_the_end_of_its_log_and_no_other_is_started(
    in_parallel, monkeypatch, tmp_path
):
    monkeypatch.setenv("FAILS", "yes")
    with pytest.raises(CellFailed, match=r"(?s)α=0.05-seed0 failed.*no such model"):
        in_parallel(1)
    logs = (tmp_path / "home").rglob("ablation-*.log")
    assert sorted(log.name.split("-", 2)[2] for log in logs) == [
        "α=0-seed0.log",
        "α=0.05-seed0.log",
    ]


@pytest.mark.parametrize(("told", "threads"), [({"OMP_NUM_THREADS": "1"}, "1"), ({}, "all")])
def test_a_child_trains_with_the_threads_it_is_told(told, threads):
    asked = "import torch; from training.launch.child import _limit_threads as f; f(0)"
    rest = {n: v for n, v in os.environ.items() if n != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", f"{asked}; print(torch.get_num_threads())"],
        cwd=ROOT, env=rest | told, capture_output=True, text=True, check=True,
    )  # fmt: skip
    everything = str(len(os.sched_getaffinity(0)))
    assert done.stdout.strip() == threads.replace("all", everything)
