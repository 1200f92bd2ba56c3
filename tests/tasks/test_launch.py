"""Which command starts a stage's processes, and when a launch that failed is started again."""

import json
import sys
from pathlib import Path

import pytest

from configs.loading import load_profile
from configs.settings.launching import Launch, OwnServer, launch_of
from configs.settings.placing import launch_for, placed
from configs.settings.topology import Topology
from tasks.models import launch
from tasks.stage.child import ChildFailed
from training.launch.jobs import BaseJob
from training.launch.node import EXIT_WORKER_LOST, PORT_TAKEN
from training.layout import CHECKPOINTS, STABLE

JOB = Path("/a/folder/job.json")
SEVERAL = Launch(nodes=2, processes=4, launcher="slurm")


def said(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_rl_takes_the_first_whole_nodes_and_sft_all():
    paper = load_profile("paper", [])
    every, some = placed(paper.sft, paper.topology), placed(paper.rl_math, paper.topology)
    assert every.runtime.launch == Launch(nodes=4, processes=8, gpus=8)
    assert some.runtime.launch == Launch(nodes=2, processes=8, gpus=8)
    own = some.runtime.model_copy(update={"launch": SEVERAL})
    kept = placed(some.model_copy(update={"runtime": own}), paper.topology)
    assert kept.runtime.launch == SEVERAL
    with pytest.raises(ValueError, match=r"rl_gpus=12 are no whole nodes .* set it to 8 or 16"):
        launch_of(Topology(nodes=4, gpus_per_node=8, gpu="H100", rl_gpus=12), "rl")


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


SERVED = ["rl_math.engine=vllm_server", "rl_math.engine_runtime.data_parallel=4"]


def test_a_stage_without_an_address_serves_on_the_gpus_that_its_topology_leaves():
    def server(*more: str) -> OwnServer | None:
        paper = load_profile("paper", [*SERVED, *more])
        assert placed(paper.sft, paper.topology).runtime.launch == Launch(
            nodes=4, processes=8, gpus=8
        )
        launch = placed(paper.rl_math, paper.topology).runtime.launch
        assert launch is not None
        return launch.server

    assert server() == OwnServer(gpus=4, apart=True)  # the nodes that train have no GPU left
    assert server("topology.rl_gpus=4") == OwnServer(gpus=4)
    assert server("rl_math.runtime.vllm_server_url=http://gpu-9:8000") is None
    assert server("rl_math.engine=vllm_colocate") is None
    tiny = load_profile("tiny", ["rl_math.engine=vllm_server"])
    assert launch_for(tiny.rl_math) == Launch(server=OwnServer())
    assert launch_for(tiny.sft) == Launch()


def test_every_launcher_starts_the_same_command_and_the_server_beside_its_first_machine(
    monkeypatch,
):
    node = [sys.executable, "-P", "-m", "training.launch.node", str(JOB)]
    beside = [sys.executable, "-P", "-m", "training.vllm.sidecar", str(JOB), "--trainers"]
    served = SEVERAL.model_copy(update={"server": OwnServer(gpus=2)})
    for launcher in ("local", "slurm"):
        plain, more = (launch.command_of(JOB, how, launcher) for how in (SEVERAL, served))
        at = plain.index(sys.executable)
        assert plain[:at] == (["srun", "--nodes=2", *plain[2:at]] if launcher == "slurm" else [])
        assert plain[at : at + 5] == node
        assert (said(plain, "--nodes"), said(plain, "--processes")) == ("2", "4")
        assert said(plain, "--sharding") == "full"
        assert more[at : at + 6] == beside
        assert more[more.index("--") + 1 :][:5] == node
        assert "--relative=0" not in more
        # under Slurm the node says its rank itself, and a server gives way on all but the first
        assert ("--slurm" in more) == ("--rank" not in plain) == (launcher == "slurm")
    one = launch.command_of(JOB, Launch(server=OwnServer(minutes=5)), "alone")
    assert one == [*beside, "1", "--minutes", "5", "--", *launch.alone(JOB)]

    monkeypatch.setattr(launch, "slurm_nodes", lambda **_: ["n0", "n1", "n2", "n3"])
    apart = SEVERAL.model_copy(update={"server": OwnServer(gpus=8, apart=True)})
    command = launch.command_of(JOB, apart, "slurm")  # on the node behind those that train
    assert said(command, "--host") == "n2"
    assert said(command, "--by").startswith("srun --relative=2 --nodes=1 --ntasks=1")
    step = command[command.index("--") + 1 :]
    assert step[:2] == ["srun", "--nodes=2"]
    assert "--relative=0" in step


PRETEND = """
import sys
from pathlib import Path
out, ends, marks = Path(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[1]) / "attempts"
attempt = len(marks.read_text()) if marks.exists() else 0
marks.write_text("x" * (attempt + 1))
code, step = ends[attempt].split(":")
if step:
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


def test_a_lost_server_costs_a_restart_of_one_process_too(run):
    assert run(f"{EXIT_WORKER_LOST}:4,0:8", Launch(server=OwnServer())) == 1


def test_a_port_that_was_taken_meanwhile_is_no_loss(run):
    never = SEVERAL.model_copy(update={"restarts": 0})
    assert run(f"{PORT_TAKEN}:,{PORT_TAKEN}:,0:4", never) == 0
    assert not (run.out / "logs" / launch.RESTARTS).exists()


LOST, TAKEN = f"{EXIT_WORKER_LOST}:", f"{PORT_TAKEN}:"
FEW = SEVERAL.model_copy(update={"restarts": 2})


@pytest.mark.parametrize(
    ("ends", "settings", "says", "tried"),
    [
        ("1:", SEVERAL, "^the child failed with exit code 1", 1),  # by itself
        ("1:4,1:", SEVERAL, "^the child failed with exit code 1", 2),  # after a new checkpoint
        (f"{LOST},{LOST}", SEVERAL, "the last restart reached no new checkpoint", 2),
        (f"{LOST}2,{LOST}4,{LOST}6,0:8", FEW, r"2 times already \(topology.restarts\)", 3),
        (",".join([TAKEN] * 9), SEVERAL, f"exit code {PORT_TAKEN}", launch.PORT_TRIES),
        ("137:2,0:4", Launch(), "signal 9", 1),  # one process, killed
    ],
)
def test_what_cannot_go_further_is_tried_no_more(run, ends, settings, says, tried):
    with pytest.raises(ChildFailed, match=says):
        run(ends, settings)
    assert attempts(run.out) == tried
