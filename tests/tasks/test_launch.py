"""The processes of a stage: commands, jobs as files, exit codes, and when a launch starts again."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, patch_environment
from accelerate.utils.launch import prepare_multi_gpu_env
from processes import output_of
from pydantic import ValidationError

from klear.configs.files import PACKAGE
from klear.configs.loading import load_profile
from klear.configs.settings.engines import EngineSettings, Sampling
from klear.configs.settings.topology import Launch, Topology
from klear.configs.settings.training import BaseModelSettings, RLSettings, SFTSettings, with_launch
from klear.tasks.engine.child import ChildFailed
from klear.tasks.models import launch
from klear.training.launch import ranks
from klear.training.launch.jobs import JOB, BaseJob, GenerateJob, RLJob, SFTJob
from klear.training.launch.result_files import CHECKPOINTS, STABLE, MetricsFile, read_lines

JOB_FILE = Path("/a/folder/job.json")
SEVERAL = Launch(nodes=2, processes=4, launcher="slurm")


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_rl_takes_the_first_whole_nodes_and_sft_all():
    paper = load_profile("paper", [])
    every, some = with_launch(paper.sft, paper.topology), with_launch(paper.rl_math, paper.topology)
    assert every.runtime.launch == Launch(nodes=4, processes=8, gpus=8)
    assert some.runtime.launch == Launch(nodes=2, processes=8, gpus=8)
    own = some.runtime.model_copy(update={"launch": SEVERAL})
    kept = with_launch(some.model_copy(update={"runtime": own}), paper.topology)
    assert kept.runtime.launch == SEVERAL
    with pytest.raises(ValueError, match=r"rl_gpus=12 must be whole nodes, .* of .* 4 × 8"):
        Topology(nodes=4, gpus_per_node=8, gpu="H100", rl_gpus=12)


def test_the_machines_decide_how_processes_are_started(monkeypatch):
    for name in ("KLEAR_RAY_ADDRESS", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert launch.launcher_of(Launch()) == "alone"
    assert launch.launcher_of(Launch(processes=8)) == "local"
    over = Launch(nodes=4, processes=8)
    for impossible in ("auto", "local", "ray"):
        elsewhere = over.model_copy(update={"launcher": impossible})
        with pytest.raises(ValueError, match=r"4 nodes .* there is no way .* KLEAR_RAY_ADDRESS"):
            launch.launcher_of(elsewhere)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert launch.launcher_of(over) == "slurm"
    monkeypatch.setenv("KLEAR_RAY_ADDRESS", "head:6379")
    assert launch.launcher_of(over) == "ray"


def test_a_launcher_starts_accelerate_and_a_slurm_node_says_itself_which_one_it_is(tmp_path):
    assert launch.command_of(JOB_FILE, Launch(), "alone") == launch.alone(JOB_FILE)
    command = launch.command_of(JOB_FILE, SEVERAL, "local")
    assert command[:4] == [sys.executable, "-P", "-m", "accelerate.commands.launch"]
    assert (option(command, "--num_machines"), option(command, "--num_processes")) == ("2", "8")
    assert Path(option(command, "--config_file")).name == "fsdp2.yaml"
    assert command[-3:] == ["--module", "klear.training.launch.run_job", str(JOB_FILE)]
    command = launch.command_of(JOB_FILE, SEVERAL, "slurm")
    assert command[:4] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    for name, does in (("scontrol", "printf '%s\\n' gpu7 gpu8"), ("python", 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    at = command.index("bash")
    node = [w if w != sys.executable else str(tmp_path / "python") for w in command[at:]]
    slurm = {"SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu[7-8]"}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm}
    words = subprocess.run(node, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert words[:3] == ["-P", "-m", "accelerate.commands.launch"]
    assert (option(words, "--machine_rank"), option(words, "--main_process_ip")) == ("1", "gpu7")
    assert words[7:] == command[command.index("--config_file") :]


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
    """`run("1:2,0:4")`: each attempt's exit code and the checkpoint that it reaches."""
    base = load_profile("tiny", []).base

    def launched(ends: str, launch_settings: Launch = SEVERAL) -> dict[str, float]:
        command = [sys.executable, "-c", PRETEND, str(tmp_path), ends]
        monkeypatch.setattr(launch, "command_of", lambda job_file, launch, launcher: command)
        job = BaseJob(out=tmp_path, settings=base)
        return launch.run_launched(job, tmp_path, launch_settings)

    launched.out = tmp_path
    return launched


def test_a_lost_node_costs_a_restart_from_the_last_checkpoint_which_is_counted(run, caplog):
    assert run("1:4,137:8,0:12") == {"restarts": 2.0, "processes": SEVERAL.world}
    starts = [m for m in caplog.messages if "starts again" in m]
    for start, step, code in zip(starts, (4, 8), (1, 137), strict=True):
        assert start.startswith(f"training starts again from step {step}:")
        assert f"exit code {code}" in start


FEW = SEVERAL.model_copy(update={"restarts": 2})


@pytest.mark.parametrize(
    ("ends", "settings", "says", "tried"),
    [
        ("2:", SEVERAL, "^the child failed with exit code 2", 1),  # refused
        ("1:,1:", SEVERAL, "the last restart reached no new checkpoint; .* exit code 1", 2),
        ("1:2,1:4,1:6,0:8", FEW, r"2 times already \(topology.restarts\)", 3),
        ("137:2,0:4", Launch(), "exit code 137", 1),  # one process, killed
    ],
)
def test_what_cannot_go_further_is_tried_no_more(run, ends, settings, says, tried):
    with pytest.raises(ChildFailed, match=says):
        run(ends, settings)
    assert len((run.out / "attempts").read_text()) == tried


HERE = Path("somewhere")
PLACE = ["--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "10.0.0.1"]
PLACE += ["--main_process_port", "29511", "--num_processes", "16"]
JOBS = [
    BaseJob(out=HERE, examples=HERE, settings=BaseModelSettings(kind="random"), seed=1),
    SFTJob(out=HERE, base=HERE, examples=HERE, settings=SFTSettings(), seed=2),
    RLJob(out=HERE, checkpoint=HERE, problems=HERE, settings=RLSettings(), seed=3),
    GenerateJob(
        out=HERE, engine=EngineSettings(kind="scripted"), sampling=Sampling(), requests=HERE
    ),
]


def test_a_job_survives_its_file_and_an_unknown_kind_or_key_is_named():
    for job in JOBS:
        assert JOB.validate_json(job.model_dump_json()) == job
        for wrong in ({"kind": "dpo"}, {"sed": 1}):
            with pytest.raises(ValidationError, match=r"dpo|sed"):
                JOB.validate_python(job.model_dump() | wrong)


def test_rl_that_samples_itself_loads_neither_vllm_nor_mlflow_nor_scipy():
    script = """if True:
        import sys
        from pathlib import Path
        from klear.training.launch import run_job
        from klear.training.launch.jobs import JOB
        run_job.WORK["rl"] = "builtins:print"  # the imports, without the work
        job = JOB.validate_python(dict(kind="rl", seed=0, out="/", checkpoint="/", problems="/",
                                       settings=dict(engine="transformers")))
        run_job.run(job)
        import klear.training.rl.train
        loaded = {n for n, module in sys.modules.items() if module}
        print(sorted({"mlflow", "scipy", "sklearn", "vllm"} & loaded))"""
    assert output_of(sys.executable, "-c", script).splitlines()[-1] == "[]"


def test_a_failing_job_says_why_and_has_no_result(tmp_path):
    engine, missing = EngineSettings(kind="scripted"), tmp_path / "no-such-requests.jsonl"
    job = GenerateJob(out=tmp_path, engine=engine, sampling=Sampling(), requests=missing)
    (tmp_path / "job.json").write_text(job.model_dump_json())
    child = (sys.executable, "-m", "klear.training.launch.run_job", tmp_path / "job.json")
    ended = subprocess.run(child, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "FileNotFoundError" in ended.stderr
    assert "no-such-requests" in ended.stderr
    assert not (tmp_path / ".resume/result.json").exists()


def test_a_resumed_run_drops_the_lines_after_its_checkpoint_and_one_cut_by_a_kill(tmp_path):
    metrics = MetricsFile(tmp_path)
    for step in (10, 20, 30):
        metrics.append(step, {"loss": 1.0})
    with (tmp_path / "logs/metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "ti')
    MetricsFile(tmp_path, after_step=20).append(30, {"loss": 2.0})
    lines = read_lines(tmp_path / "logs/metrics.jsonl")
    assert [line["step"] for line in lines] == [10, 20, 30]
    assert lines[-1]["metrics"] == {"loss": 2.0}


@pytest.mark.parametrize("sharding", ["full", "none"])
def test_accelerate_is_told_the_machines_the_processes_and_the_sharding(sharding):
    config = str(PACKAGE / "configs/accelerate" / launch.FILES[sharding])
    child_of = ["--module", "klear.training.launch.run_job", "job.json"]
    parsed = launch_command_parser().parse_args(["--config_file", config, *PLACE, *child_of])
    arguments = _validate_launch_command(parsed)[0]
    assert arguments.multi_gpu == (sharding == "none")
    environment = prepare_multi_gpu_env(arguments)
    names = ("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "rdzv_backend")
    values = [str(getattr(arguments, name)) for name in names]
    assert values == ["2", "8", "1", "10.0.0.1:29511", "static"]
    # The stage's runtime.precision decides.
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert arguments.use_fsdp == (sharding == "full")
    if arguments.use_fsdp:
        with patch_environment(**environment):
            plugin = FullyShardedDataParallelPlugin()
        assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
        assert "SHARDED" in str(plugin.state_dict_type)


def test_the_others_begin_when_the_first_has_ended_and_not_where_it_failed(tmp_path, monkeypatch):
    done, order = tmp_path / "DONE", []
    with pytest.raises(ZeroDivisionError):
        ranks.rank0_first(done, lambda: 1 / 0)
    assert not done.exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    other = threading.Thread(target=ranks.rank0_first, args=(done, lambda: order.append("other")))
    other.start()
    time.sleep(3 * ranks.POLL_S)
    monkeypatch.setenv("RANK", "0")
    ranks.rank0_first(done, lambda: order.append("first"))
    other.join()
    assert order == ["first", "other"]
