"""A checkpoint of ours is loaded by vLLM, which gives the answers that transformers gives.

One start of vLLM (most of a minute) is all that the suite spends on it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from training.engines.generate import generate_job
from training.engines.interface import Request
from training.engines.journal import Journal, journal_path
from training.launch.jobs import GenerateJob, write_job

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
PROMPTS = ("Make 5 from 1, 2, 3.", "Make 12 from 3, 4, 7, 9.", "What is 1+1?")


def job(kind: str, checkpoint: Path, out: Path) -> GenerateJob:
    out.mkdir()
    requests = [Request(problem_id=str(i), index=0, prompt=p) for i, p in enumerate(PROMPTS)]
    file = out / "requests.jsonl"
    file.write_text("".join(r.model_dump_json() + "\n" for r in requests))
    engine = EngineSettings(
        kind=kind,  # type: ignore[arg-type]
        model=str(checkpoint),
        runtime=EngineRuntime(dtype="float32", batch_size=1),
    )
    sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=12)
    return GenerateJob(out=out, engine=engine, sampling=sampling, requests=file)


def answers(out: Path) -> list[tuple[str, str, int]]:
    with Journal(journal_path(out)) as journal:
        keys = ((str(i), 0) for i in range(len(PROMPTS)))
        return [(s.text, s.finish_reason, s.completion_tokens) for s in journal.samples(keys)]


def test_vllm_answers_as_transformers_does(vllm_checkpoint, tmp_path):
    generate_job(job("transformers", vllm_checkpoint, tmp_path / "hf"))
    asked = job("vllm", vllm_checkpoint, tmp_path / "vllm")
    write_job(tmp_path / "job.json", asked)
    done = subprocess.run(
        [sys.executable, "-m", "training.launch.child", str(tmp_path / "job.json")],
        cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert answers(tmp_path / "vllm") == answers(tmp_path / "hf")
    assert any(tokens > 1 for _, _, tokens in answers(tmp_path / "hf"))
