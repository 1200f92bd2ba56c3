"""Which command starts a stage's processes, and when a launch that failed is started again."""

import json
import sys
from pathlib import Path

import pytest

from configs.loading import load_profile
from configs.settings.topology import Launch, Topology
from configs.settings.training import with_launch
from tasks.models import launch
from tasks.stage.child import ChildFailed
from training.launch.jobs import BaseJob
from training.launch.node import EXIT_WORKER_LOST
from training.layout import CHECKPOINTS, STABLE

JOB = Path("/a/folder/job.json")
SEVERAL = Launch(nodes=2, processes=4, launcher="slurm")


def said(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_rl_takes_the_first_whole_nodes_and_sft_all():
    paper = load_profile("paper", [])
    every, some = with_launch(paper.sft, paper.topology), with_launch(paper.rl_math, paper.topology)
    assert every.runtime.launch == Launch(nodes=4, processes=8, gpus=8)
    assert some.runtime.launch == Launch(nodes=2, processes=8, gpus=8)
    own = some.runtime.model_copy(update={"launch": SEVERAL})
    kept = with_launch(some.model_copy(update={"runtime": own}), paper.topology)
    assert kept.runtime.launch == SEVERAL
    with pytest.raises(ValueError, match="rl_gpus=12 are no whole nodes of 8 GPUs"):
        Topology(nodes=4, gpus_per_node=8, gpu="H100", rl_gpus=12)


def test_the_machines_decide_how_processes_are_started(monkeypatch):
    for name in ("KLEAR_RAY_ADDRESS", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert launch.launcher_of(Launch()) == "alone"
    assert launch.launcher_of(Launch(processes=8)) == "local"
    over = Launch(nodes=4, processes=8)
    for impossible in ("auto", "local", "ray"):
        asked = over.model_copy(update={"launcher": impossible})
        with pytest.raises(ValueError, match=r"4 nodes .* there is no way .* KLEAR_RAY_ADDRESS"):
            launch.launcher_of(asked)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert launch.launcher_of(over) == "slurm"
    monkeypatch.setenv("KLEAR_RAY_ADDRESS", "head:6379")
    assert launch.launcher_of(over) == "ray"


def test_every_launcher_starts_the_same_command():
    node = [sys.executable, "-P", "-m", "training.launch.node", str(JOB)]
    for launcher in ("local", "slurm"):
        command = launch.command_of(JOB, SEVERAL, launcher)
        at = command.index(sys.executable)
        before = ["srun", "--nodes=2", *command[2:at]] if launcher == "slurm" else []
        assert command[:at] == before
        assert command[at : at + 5] == node
        assert (said(command, "--nodes"), said(command, "--processes")) == ("2", "4")
        assert said(command, "--sharding") == "full"
        assert ("--rank" not in command) == (launcher == "slurm")  # there the node says it itself
    assert launch.command_of(JOB, Launch(), "alone") == launch.alone(JOB)


PRETEND = """
import sys
from pathlib import Path
out, ends, marks = Path(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[1]) / "attempts"
attempt = len(marks.read_text()) if marks.exists() else 0
marks.write_text("x" * (attempt + 1))
code, step = ends[attempt].split(":")
if step == "taken":
    print("EADDRINUSE")
elif step:
    checkpoint = out / ".resume" / "CHECKPOINTS" / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "STABLE").touch()
sys.exit(int(code))
""".replace("CHECKPOINTS", CHECKPOINTS).replace("STABLE", STABLE)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run("75:2,0:4")`: each attempt's exit code and the checkpoint that it reaches."""
    base = load_profile("tiny", []).base

    def launched(ends: str, launch_settings: Launch = SEVERAL) -> int:
        command = [sys.executable, "-c", PRETEND, str(tmp_path), ends]
        monkeypatch.setattr(launch, "command_of", lambda job_file, launch, launcher: command)
        job = BaseJob(out=tmp_path, settings=base)
        return launch.run_launched(job, tmp_path, launch_settings)

    launched.out = tmp_path
    return launched


def attempts(out: Path) -> int:
    return len((out / "attempts").read_text())


def test_a_lost_node_costs_a_restart_from_the_last_checkpoint_which_is_counted(run):
    assert run(f"{EXIT_WORKER_LOST}:4,137:8,0:12") == 2
    lines = [json.loads(x) for x in (run.out / "logs" / launch.RESTARTS).read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 8]
    assert f"exit code {EXIT_WORKER_LOST}" in lines[0]["why"]
    assert "signal 9" in lines[1]["why"]


def test_a_port_that_was_taken_meanwhile_costs_no_restart_five_times_in_a_row(run):
    taken = f"{EXIT_WORKER_LOST}:taken,"
    none = SEVERAL.model_copy(update={"restarts": 0})
    assert run(taken * 4 + "0:4", none) == 0
    (run.out / "attempts").unlink()
    with pytest.raises(ChildFailed, match="EADDRINUSE"):
        run(taken * 5, none)
    assert attempts(run.out) == 5


LOST = f"{EXIT_WORKER_LOST}:"
FEW = SEVERAL.model_copy(update={"restarts": 2})


@pytest.mark.parametrize(
    ("ends", "settings", "says", "tried"),
    [
        ("1:", SEVERAL, "^the child failed with exit code 1", 1),  # by itself
        ("1:4,1:", SEVERAL, "^the child failed with exit code 1", 2),  # after a new checkpoint
        (f"{LOST},{LOST}", SEVERAL, "the last restart reached no new checkpoint", 2),
        (f"{LOST}2,{LOST}4,{LOST}6,0:8", FEW, r"2 times already \(topology.restarts\)", 3),
        ("137:2,0:4", Launch(), "signal 9", 1),  # one process, killed
    ],
)
def test_what_cannot_go_further_is_tried_no_more(run, ends, settings, says, tried):
    with pytest.raises(ChildFailed, match=says):
        run(ends, settings)
    assert attempts(run.out) == tried
