"""The whole chain through real servers, on a profile of seconds: run, reuse, kill, resume."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from configs.stage_names import STAGES

KLEAR = [sys.executable, "-m", "flows.cli"]
ROOT = Path(__file__).resolve().parents[2]
MICRO = """
extends: tiny
collect:
  sources:
    - {name: countdown_rl, domain: math, kind: generated, family: countdown, size: 24}
    - {name: by_example_rl, domain: code, kind: generated, family: by_example, size: 24}
    - {name: countdown, domain: math, kind: generated, family: countdown, size: 60}
    - {name: by_example, domain: code, kind: generated, family: by_example, size: 60,
       duplicate_share: 0.1, contaminated_share: 0.1, contaminated_seed: 2024}
sft: {epochs: 3, batch_tokens: 1000, checkpoint_steps: 4}
rl_math: &rl {steps: 3, prompts_per_step: 8, rollouts_per_prompt: 4, mini_batch_prompts: 4,
              max_tokens: 48, checkpoint_steps: 1}
rl_code: *rl
evaluate:
  sampling: {max_tokens: 48}
  protocols: [{name: countdown_test, k: 1}, {name: by_example_test, k: 1}]
"""
SKIPPED_STAGES = {"rate", "judge_rate", "agreement", "judge_agreement"}  # not in the tiny profile
COMPUTED = [s for s in STAGES if s not in SKIPPED_STAGES]


class Place:
    """One klear home with its servers."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0))
            b.bind(("127.0.0.1", 0))
            self.mlflow_port = b.getsockname()[1]
            ports = {
                "KLEAR_PREFECT_PORT": str(a.getsockname()[1]),
                "KLEAR_MLFLOW_PORT": str(self.mlflow_port),
            }
        self.home = folder / "home"
        self.profile = folder / "micro.yaml"
        self.profile.write_text(MICRO)
        self.environment = {**os.environ, "KLEAR_HOME": str(self.home), **ports}

    def klear(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*KLEAR, *arguments], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )

    def run(self, *arguments: str) -> str:
        """What `klear run` printed; it must have succeeded."""
        done = self.klear("run", str(self.profile), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*KLEAR, "run", str(self.profile), *arguments],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(tracking_uri=f"http://127.0.0.1:{self.mlflow_port}")

    def pipelines(self, seed: int) -> list[str]:
        experiment = self.mlflow.get_experiment_by_name("klear-micro")
        assert experiment is not None
        query = f"tags.`klear.kind` = 'pipeline' and tags.`klear.seed` = '{seed}'"
        return [r.info.run_id for r in self.mlflow.search_runs([experiment.experiment_id], query)]

    def children(self, parent: str, stage: str = "") -> list[str]:
        experiment = self.mlflow.get_experiment_by_name("klear-micro")
        assert experiment is not None
        query = f"tags.`mlflow.parentRunId` = '{parent}'"
        query += f" and tags.`klear.stage` = '{stage}'" if stage else ""
        return [r.info.run_id for r in self.mlflow.search_runs([experiment.experiment_id], query)]

    def processes(self) -> list[int]:
        """Living processes of runs below this home (not the servers)."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(self.store) in command and state not in "ZX":
                found.append(int(entry.name))
        return found


def computed(output: str) -> list[str]:
    return [line.split()[1] for line in output.splitlines() if line.startswith("✓")]


def cached(output: str) -> list[str]:
    return [line.split()[1] for line in output.splitlines() if line.startswith("=")]


def eventually(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("klear"))
    up = place.klear("up")
    assert up.returncode == 0, up.stdout + up.stderr
    yield place
    assert place.klear("down").returncode == 0


@pytest.fixture(scope="module")
def first(place: Place) -> str:
    """What the first whole run printed."""
    return place.run()


def test_every_stage_runs_and_the_report_is_written(place: Place, first: str) -> None:
    assert sorted(computed(first)) == sorted(COMPUTED)
    (page,) = place.store.glob("report/*/report.html")
    assert "not comparable to the paper" in page.read_text()


def test_mlflow_holds_one_parent_with_one_child_a_stage_and_its_scores(
    place: Place, first: str
) -> None:
    (parent,) = place.pipelines(seed=0)
    run = place.mlflow.get_run(parent)
    assert run.info.status == "FINISHED"
    assert len(place.children(parent)) == len(COMPUTED)
    assert 0.0 <= run.data.metrics["rl_code/countdown_test/avg"] <= 1.0
    (rl,) = place.children(parent, "rl_math")
    steps = [m.step for m in place.mlflow.get_metric_history(rl, "reward/mean")]
    assert sorted(steps) == [1, 2, 3]


def test_the_same_command_again_finds_every_stage_cached(place: Place, first: str) -> None:
    again = place.run()
    assert computed(again) == []
    assert sorted(cached(again)) == sorted(COMPUTED)
    assert "every stage cached" in again


def test_deleting_one_folder_recomputes_that_stage_only(place: Place, first: str) -> None:
    shutil.rmtree(next(place.store.glob("rl_math/*")))
    again = place.run()
    assert computed(again) == ["rl_math"]


def test_a_stage_can_be_forced_and_the_run_stopped_after_it(place: Place, first: str) -> None:
    output = place.run("--force", "select", "--until", "select")
    assert computed(output) == ["select"]
    assert "sft" not in cached(output)


@pytest.mark.parametrize(("seed", "stage"), [(1, "sft"), (2, "rl_math")])
def test_a_killed_run_continues_from_its_checkpoint_in_the_same_mlflow_run(
    place: Place, first: str, seed: int, stage: str
) -> None:
    running = place.start("--seed", str(seed))
    assert eventually(
        lambda: any(place.store.glob(f".work/{stage}/*/.resume/checkpoints/checkpoint-*"))
    ), f"{stage} wrote no checkpoint"
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert eventually(lambda: not place.processes(), 20), "orphans are left"
    before = place.pipelines(seed)

    output = place.run("--seed", str(seed), "--until", stage)

    assert any(line.split() == [stage, "resuming"] for line in output.splitlines())
    assert place.pipelines(seed) == before
    assert len(before) == 1
    (child,) = place.children(before[0], stage)
    steps = [m.step for m in place.mlflow.get_metric_history(child, "step")]
    assert len(steps) == len(set(steps)), "a step was logged twice"
    assert sorted(steps) == list(range(min(steps), max(steps) + 1, steps_apart(steps)))


def steps_apart(steps: list[int]) -> int:
    ordered = sorted(steps)
    return ordered[1] - ordered[0]


def test_a_missing_data_file_is_one_line_and_nothing_half_written(place: Place) -> None:
    failed = place.klear("run", "replay", "--set", "data.root=/nonexistent", "--until", "collect")
    assert failed.returncode == 1
    (line,) = [x for x in failed.stdout.splitlines() if "failed:" in x]
    assert "aime_1983_2023" in line
    assert "Traceback" not in failed.stdout + failed.stderr
    assert not any(
        "nonexistent" in (m.read_text()) for m in place.store.glob("collect/*/manifest.json")
    )
