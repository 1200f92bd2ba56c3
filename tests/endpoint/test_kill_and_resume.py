"""Distilling over HTTP in a process that is killed with SIGKILL: nothing lost, nothing doubled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import eventually

from klear.eval.records import Problem, Sample
from klear.eval.tables import read_table, write_table
from tests.endpoint.conftest import one_percent_of_each

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY, REQUESTS = 32, 600
CLIENT = f"""
import sys
from pathlib import Path
from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings
from klear.tasks.answers.distill import distill
from klear.tasks.stage.run import Run, active
from klear.tasks.store.store import Artifact, Store
from klear.training.engines import endpoint

problems, store, url = sys.argv[1:]
endpoint.FIRST_DELAY_S = 0.02
engine = EngineSettings(
    kind='openai', model='teacher-r1', base_url=url,
    runtime=EngineRuntime(concurrency={CONCURRENCY}, silence_timeout_s=10.0, output_price=2.0),
)
with active(Run(store=Store(Path(store)))):
    made = distill(Artifact.of_folder(Path(problems)),
                   settings=SampleSettings(samples_per_prompt=2, engine=engine))
print('folder', made.folder)
"""


def client(folder: Path, rows: list[Problem], url: str) -> subprocess.Popen[str]:
    """Distill `rows` into `folder/store`, in a process of its own."""
    (folder / "problems").mkdir(exist_ok=True)
    write_table(folder / "problems" / "kept.parquet", Problem, rows)
    folders = [str(folder / "problems"), str(folder / "store")]
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, *folders, url],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "sk-any", "PYTHONPATH": str(ROOT / ".package")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_in_the_middle_of_every_fault_it_ends_with_the_same_samples(endpoint_of, tmp_path):
    prompts = (f"question {i}" for i in range(REQUESTS // 2))
    rows = [Problem(domain="math", prompt=p, answer="1", source="s") for p in prompts]
    with endpoint_of(one_percent_of_each, latency_s=0.02, size=4_000) as endpoint:
        first = client(tmp_path, rows, endpoint.url)
        assert eventually(lambda: endpoint.answers.total() >= REQUESTS // 2, pause_s=0.02)
        first.kill()
        first.communicate()
        second = client(tmp_path, rows, endpoint.url)
        said, errors = second.communicate(timeout=240)
        assert second.returncode == 0, errors[-3000:]
    folder = Path(said.split()[-1])
    samples = list(read_table(folder / "samples.parquet", Sample))
    assert [(s.problem_id, s.index, s.text) for s in samples] == [
        (p.id, i, endpoint.right_answer(p.prompt)) for p in rows for i in range(2)
    ]
    # Only what was on its way when the process died was answered twice.
    assert 0 <= endpoint.answers.total() - REQUESTS <= CONCURRENCY
    assert max(endpoint.answers.values()) <= 2 + 2
    manifest = json.loads((folder / "manifest.json").read_text())
    tokens = sum(s.completion_tokens for s in samples)
    assert manifest["metrics"]["cost"] == pytest.approx(tokens * 2.0 / 1e6)
    assert manifest["metrics"]["samples"] == REQUESTS
