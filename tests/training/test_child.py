"""The processes of a stage: jobs as files, exit codes, what they write, how they are launched."""

import json
import threading
import time
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, patch_environment
from accelerate.utils.launch import prepare_multi_gpu_env
from pydantic import ValidationError

from klear.configs.files import PACKAGE
from klear.configs.settings.engines import EngineSettings, Sampling
from klear.configs.settings.training import BaseModelSettings, RLSettings, SFTSettings
from klear.tasks.models import launch
from klear.training.launch import child, ranks
from klear.training.launch.jobs import JOB, BaseJob, GenerateJob, RLJob, SFTJob
from klear.training.layout import MetricsFile, read_lines

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


def write_job(path, job):
    path.write_text(job.model_dump_json())
    return path


@pytest.mark.parametrize("job", JOBS, ids=lambda j: j.kind)
def test_a_job_survives_its_file_and_an_unknown_kind_or_key_is_an_error_that_names_it(
    tmp_path, job
):
    path = write_job(tmp_path / "job.json", job)
    assert JOB.validate_json(path.read_bytes()) == job
    for wrong in ({"kind": "dpo"}, {"sed": 1}):
        path.write_text(json.dumps(json.loads(job.model_dump_json()) | wrong))
        with pytest.raises(ValidationError, match=r"dpo|sed"):
            JOB.validate_json(path.read_bytes())


def test_a_failing_job_says_why_and_has_no_result(tmp_path):
    missing = tmp_path / "no-such-examples.parquet"
    job = BaseJob(out=tmp_path, examples=missing, settings=BaseModelSettings(kind="random"))
    write_job(tmp_path / "job.json", job)
    with pytest.raises(FileNotFoundError, match="no-such-examples"):
        child.main([str(tmp_path / "job.json")])
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
    child_of = ["--module", "klear.training.launch.child", "job.json"]
    given = launch_command_parser().parse_args(["--config_file", config, *PLACE, *child_of])
    arguments = _validate_launch_command(given)[0]
    assert arguments.multi_gpu == (sharding == "none")
    environment = prepare_multi_gpu_env(arguments)
    names = ("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "rdzv_backend")
    told = [str(getattr(arguments, name)) for name in names]
    assert told == ["2", "8", "1", "10.0.0.1:29511", "static"]
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"  # the stage's runtime.bf16 decides
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
