"""The whole chain through real servers, on a profile of seconds: run, reuse, kill, resume."""

import os
import shutil
import signal

import pytest
from home import EVERY_STAGE, Home, cached, computed, eventually


def pipelines(cockpit: Home, seed: int) -> list[str]:
    query = f"tags.`klear.kind` = 'pipeline' and tags.`klear.seed` = '{seed}'"
    return [run.info.run_id for run in cockpit.tracked(query)]


def stages_of(cockpit: Home, parent: str, stage: str = "") -> list[str]:
    query = f"tags.`mlflow.parentRunId` = '{parent}'"
    query += f" and tags.`klear.stage` = '{stage}'" if stage else ""
    return [run.info.run_id for run in cockpit.tracked(query)]


def test_every_stage_runs_and_mlflow_holds_one_child_each_and_the_scores(cockpit, first):
    assert sorted(computed(first)) == sorted(EVERY_STAGE)
    (page,) = cockpit.store.glob("report/*/report.html")
    assert "not comparable to the paper" in page.read_text()
    every = {p: len(stages_of(cockpit, p)) for p in pipelines(cockpit, seed=0)}
    (parent,) = [p for p, stages in every.items() if stages == len(EVERY_STAGE)]
    run = cockpit.mlflow.get_run(parent)
    assert run.info.status == "FINISHED"
    assert 0.0 <= run.data.metrics["countdown_test/avg"] <= 1.0
    (rl,) = stages_of(cockpit, parent, "rl_math")
    steps = [m.step for m in cockpit.mlflow.get_metric_history(rl, "rl_math/reward/mean")]
    assert sorted(steps) == [1, 2, 3]


def test_the_same_command_again_finds_every_stage_cached(cockpit: Home, first: str) -> None:
    again = cockpit.run()
    assert computed(again) == []
    assert sorted(cached(again)) == sorted(EVERY_STAGE)
    assert "every stage cached" in again


@pytest.mark.system
def test_a_deleted_or_forced_stage_is_computed_again_and_the_run_stops_where_it_is_told(
    cockpit: Home, first: str
) -> None:
    shutil.rmtree(next(cockpit.store.glob("rl_math/*")))
    assert computed(cockpit.run()) == ["rl_math"]
    output = cockpit.run("--force", "select", "--until", "select")
    assert computed(output) == ["select"]
    assert "sft" not in cached(output)


@pytest.mark.system
def test_a_killed_run_continues_from_its_checkpoint_in_the_same_mlflow_run(
    cockpit: Home, first: str
) -> None:
    running = cockpit.start("--seed", "1")
    cockpit.hold_at_checkpoint("sft")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert eventually(lambda: not cockpit.children()), "orphans are left"
    before = pipelines(cockpit, 1)
    output = cockpit.run("--seed", "1", "--until", "sft")
    assert any(line.split()[:2] == ["sft", "resuming"] for line in output.splitlines())
    assert pipelines(cockpit, 1) == before
    assert len(before) == 1
    (child,) = stages_of(cockpit, before[0], "sft")
    cockpit.check_steps(child)


def test_a_missing_data_file_is_one_line_and_nothing_half_written(cockpit: Home) -> None:
    words = ("--set", "data.root=/nonexistent", "--until", "collect")
    failed = cockpit.command("run", "replay", *words)
    assert failed.returncode == 1
    (line,) = [x for x in failed.stdout.splitlines() if "failed:" in x]
    assert "source 'aime_1983_2023'" in line
    assert "--set data.root=DIR names the folder that holds it" in line
    assert "Traceback" not in failed.stdout + failed.stderr
    manifests = cockpit.store.glob("collect/*/manifest.json")
    assert not any("nonexistent" in manifest.read_text() for manifest in manifests)
