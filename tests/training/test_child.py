"""The child process: jobs as files, exit codes, results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from configs.settings.engines import EngineSettings, Sampling
from configs.settings.training import BaseModelSettings, RLSettings, SFTSettings, TrainRuntime
from training.launch import child
from training.launch.jobs import BaseJob, GenerateJob, RLJob, SFTJob, read_job, write_job

ROOT = Path(__file__).parents[2]
HERE = Path("somewhere")
JOBS = [
    BaseJob(out=HERE, examples=HERE, settings=BaseModelSettings(kind="random"), seed=1),
    SFTJob(out=HERE, base=HERE, examples=HERE, settings=SFTSettings(), seed=2),
    RLJob(out=HERE, checkpoint=HERE, problems=HERE, settings=RLSettings(), seed=3),
    GenerateJob(
        out=HERE, engine=EngineSettings(kind="scripted"), sampling=Sampling(), requests=HERE
    ),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda j: j.kind)
def test_a_job_survives_its_file(tmp_path, job):
    write_job(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job


def test_an_unknown_kind_or_key_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "job.json"
    write_job(path, JOBS[0])
    job = json.loads(path.read_text())
    path.write_text(json.dumps(job | {"kind": "dpo"}))
    with pytest.raises(ValidationError, match="dpo"):
        read_job(path)
    path.write_text(json.dumps(job | {"sed": 1}))
    with pytest.raises(ValidationError, match="sed"):
        read_job(path)


def test_jobs_can_be_written_without_torch():
    code = "import sys, training.launch.jobs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_child_runs_its_job_and_leaves_the_result(files, tmp_path):
    write_job(
        tmp_path / "job.json",
        SFTJob(
            out=tmp_path / "out",
            base=files["checkpoint"],
            examples=files["examples"],
            settings=SFTSettings(
                epochs=1,
                batch_tokens=1_024,
                max_length=256,
                runtime=TrainRuntime(bf16=False, gradient_checkpointing=False, threads=1),
            ),
        ),
    )
    done = subprocess.run(
        [sys.executable, "-m", "training.launch.child", str(tmp_path / "job.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out/.resume/result.json").read_text())
    assert result["steps"] >= 1
    assert (tmp_path / "out/checkpoint/model.safetensors").exists()


def test_a_failing_job_exits_with_1_and_says_why(tmp_path, capsys):
    missing = tmp_path / "no-such-examples.parquet"
    job = BaseJob(out=tmp_path, examples=missing, settings=BaseModelSettings(kind="random"))
    write_job(tmp_path / "job.json", job)
    assert child.main([str(tmp_path / "job.json")]) == 1
    assert "no-such-examples" in capsys.readouterr().err
    assert not (tmp_path / ".resume/result.json").exists()


def test_wrong_usage_exits_with_2(tmp_path, capsys):
    assert child.main([]) == 2
    assert child.main([str(tmp_path / "no.json")]) == 2
    assert "usage" in capsys.readouterr().err
