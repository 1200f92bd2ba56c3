"""SIGTERM to a stage of two processes, as Cancel and Suspend send it; then the same job again."""

import json
import time
from functools import partial

import pytest

from klear.configs.settings.topology import Launch
from klear.tasks.engine import child
from klear.tasks.engine.child import run_child, start_supervised
from klear.tasks.models.launch import command_of
from klear.training.launch import result_files
from klear.training.launch.jobs import SFTJob
from tests.training.killed_child import SFT

pytestmark = pytest.mark.system
COMMAND = partial(command_of, launch=Launch(processes=2, sharding="none"), launcher="local")


def steps_of(out) -> int:
    path = out / result_files.PROGRESS
    return int(json.loads(path.read_text())["done"]) if path.exists() else 0


def test_two_processes_save_their_step_and_go_on_to_the_same_bits(files, tmp_path, monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 60.0)  # whatever else the machine does meanwhile
    settings = SFT.model_copy(update={"epochs": 40, "checkpoint_steps": 10**6})

    def job(name: str) -> SFTJob:
        weights = {
            "out": tmp_path / name,
            "base": files["checkpoint"],
            "examples": files["examples"],
        }
        return SFTJob(**weights, seed=3, settings=settings)

    undisturbed, cut = job("whole"), job("cut")
    run_child(undisturbed, undisturbed.out, command=COMMAND)
    file, log = cut.out / ".resume/job.json", cut.out / "child.log"
    file.parent.mkdir(parents=True)
    file.write_text(cut.model_dump_json())
    stage = start_supervised(COMMAND(file), log)
    while steps_of(cut.out) < 3:
        assert stage.poll() is None, log.read_text()[-3000:]
        time.sleep(0.02)
    stage.terminate()
    stage.wait()
    newest = result_files.latest(cut.out / ".resume/checkpoints")
    assert newest, log.read_text()[-3000:]
    assert 3 <= result_files.number_of(newest) < steps_of(undisturbed.out)
    run_child(cut, cut.out, command=COMMAND)
    weights = "checkpoint/model.safetensors"
    assert (cut.out / weights).read_bytes() == (undisturbed.out / weights).read_bytes()
