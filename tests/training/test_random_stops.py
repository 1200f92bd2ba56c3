"""SIGTERM or SIGKILL to `run_job` at any moment between its start and its end, then the same job
again: the curves and bits of a run that nobody disturbed. `STOPS=20` in the environment for twenty.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from klear.configs.settings.judging import JudgeRuntime, RolloutJudgeSettings
from klear.eval.records import Problem
from klear.eval.records.tables import write_table
from klear.training.launch import result_files
from klear.training.launch.jobs import RLJob, SFTJob
from tests.training.killed_child import RL, SFT
from tests.training.test_reward import adding
from tests.training.test_sigkill import ENVIRONMENT, ROOT, curves

pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]
STOPS = int(os.environ.get("STOPS", "2"))
LOOK_S = 0.005


def start(job: SFTJob | RLJob) -> "subprocess.Popen[bytes]":
    file = job.out / result_files.SCRATCH / "job.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(job.model_dump_json())
    command = [sys.executable, "-P", "-m", "klear.training.launch.run_job", str(file)]
    with (job.out / "child.log").open("ab") as log:
        return subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stdout=log, stderr=log,
                                start_new_session=True)  # fmt: skip


def trains(out: Path) -> bool:
    """Whether the process has come to its first step."""
    path = out / result_files.PROGRESS
    return path.exists() and json.loads(path.read_text())["total"] > 0


def wait_until(process: "subprocess.Popen[bytes]", condition: Callable[[], bool]) -> bool:
    """Whether it came to be while the process ran."""
    while process.poll() is None:
        if condition():
            return True
        time.sleep(LOOK_S)
    return False


def results(out: Path) -> dict[str, bytes]:
    names = "checkpoint/model.safetensors", result_files.ROLLOUTS, result_files.OFF_POLICY
    return {name: (out / name).read_bytes() for name in names if (out / name).exists()}


@pytest.mark.parametrize("kind", ["sft", "code"])
def test_a_stop_at_any_moment_ends_with_the_bits_of_an_undisturbed_run(files, tmp_path, kind):
    programs = tmp_path / "code.parquet"
    write_table(programs, Problem, [adding(f"Add {i}.", 4) for i in range(16)])
    judge = RolloutJudgeSettings(runtime=JudgeRuntime(workers=1))
    few = {"domain": kind, "random_reward": 0.5, "judge": judge, "max_tokens": 48}

    def job(name: str) -> SFTJob | RLJob:
        same = {"out": tmp_path / name, "seed": 3}
        if kind == "sft":
            settings = SFT.model_copy(update={"epochs": 8})
            base, examples = files["checkpoint"], files["examples"]
            return SFTJob(**same, base=base, examples=examples, settings=settings)
        settings = RL.model_copy(update=few)
        return RLJob(**same, checkpoint=files["checkpoint"], problems=programs, settings=settings)

    seed = random.SystemRandom().randrange(10**6)
    rng, began, calm = random.Random(seed), time.monotonic(), job("whole")
    undisturbed = start(calm)
    assert wait_until(undisturbed, lambda: trains(calm.out)), (calm.out / "child.log").read_text()
    first = time.monotonic() - began
    assert undisturbed.wait() == 0, (calm.out / "child.log").read_text()
    seconds = time.monotonic() - began
    reference, stops, tries = (curves(calm.out), results(calm.out)), 0, 0
    while stops < STOPS:
        tries += 1
        sign, cut = (signal.SIGTERM, signal.SIGKILL)[stops % 2], job(f"cut-{tries}")
        early = rng.random() < 0.4  # of all the time; else of that in which it trains
        moment = rng.uniform(0, seconds if early else seconds - first)
        process = start(cut)
        if not early:
            wait_until(process, lambda out=cut.out: trains(out))
        end = time.monotonic() + moment
        if not wait_until(process, lambda end=end: time.monotonic() >= end):
            continue  # it was quicker than the undisturbed one
        process.send_signal(sign) if sign == signal.SIGTERM else os.killpg(process.pid, sign)
        process.wait()
        stops += 1
        assert start(cut).wait() == 0, (cut.out / "child.log").read_text()
        description = f"seed {seed}: stop {stops}, {sign.name} after {moment:.2f} s, {early=}"
        assert (curves(cut.out), results(cut.out)) == reference, description
