"""Distilling over HTTP in a process that is killed with SIGKILL: nothing lost, nothing doubled, and
no trace of the key in anything that is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from klear.eval.records import Problem, Sample
from klear.eval.tables import read_table, write_table
from tests.endpoint.conftest import one_percent_of_each, until

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-very-secret-0123456789"
CONCURRENCY, REQUESTS = 32, 600
CLIENT = f"""
import logging, sys
from pathlib import Path
from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings
from klear.tasks.stage.progress import Plain
from klear.tasks.answers.distill import distill
from klear.tasks.stage.run import Run, active
from klear.tasks.store.store import Artifact, Store
from klear.tasks.tracking.run_tracker import Tracker
from klear.training.engines import endpoint

problems, store, url, mlflow = sys.argv[1:]
if mlflow:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)
endpoint.FIRST_DELAY_S = 0.02
engine = EngineSettings(
    kind='openai', model='teacher-r1', base_url=url,
    runtime=EngineRuntime(concurrency={CONCURRENCY}, silence_timeout_s=10.0, output_price=2.0),
)
tracker = Tracker(mlflow, 'test') if mlflow else None
tracked = {{'tracker': tracker, 'run_id': tracker.start_pipeline('t', {{}})}} if tracker else {{}}
with active(Run(store=Store(Path(store)), **tracked)):
    made = distill(Artifact.of_folder(Path(problems)),
                   settings=SampleSettings(samples_per_prompt=2, engine=engine))
print('folder', made.folder)
"""


def client(folder: Path, rows: list[Problem], url: str, mlflow: str = "") -> subprocess.Popen[str]:
    """Distill `rows` into `folder/store`, in a process of its own."""
    (folder / "problems").mkdir(exist_ok=True)
    write_table(folder / "problems" / "kept.parquet", Problem, rows)
    folders = [str(folder / "problems"), str(folder / "store")]
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, *folders, url, mlflow],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": KEY, "PYTHONPATH": str(ROOT / ".package")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def problems(count: int) -> list[Problem]:
    return [Problem(domain="math", prompt=f"question {i}", answer="1", source=f"source-{i % 2}")
            for i in range(count)]  # fmt: skip


def test_killed_in_the_middle_of_every_fault_it_ends_with_the_same_samples(endpoint_of, tmp_path):
    rows = problems(REQUESTS // 2)
    with endpoint_of(one_percent_of_each, latency_s=0.02, size=4_000) as endpoint:
        first = client(tmp_path, rows, endpoint.url)
        until(lambda: endpoint.answers.total() >= REQUESTS // 2)
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


@pytest.mark.system
def test_the_key_is_in_no_file_log_or_mlflow_record(endpoint_of, tmp_path):
    mlflow = f"sqlite:///{tmp_path}/mlflow.db"
    with endpoint_of(one_percent_of_each) as endpoint:
        asking = client(tmp_path, problems(12), endpoint.url, mlflow)
        said, errors = asking.communicate(timeout=240)
        assert asking.returncode == 0, errors[-3000:]
        assert {b["key"] for b in endpoint.bodies} == {f"Bearer {KEY}"}
    assert "HTTP Request" in errors  # the client's own debug log was on
    assert KEY not in said + errors
    _figures_are_in(mlflow)
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert {"manifest.json", "mlflow.db"} <= {f.name for f in files}
    assert not [str(f) for f in files if KEY.encode() in f.read_bytes()]


def _figures_are_in(mlflow: str) -> None:
    """Tokens a second; tokens and cost, of the whole and of each source, that agree."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=mlflow)
    everything = [e.experiment_id for e in client.search_experiments()]
    runs = [r.data.metrics for r in client.search_runs(everything)]
    (found,) = [m for m in runs if "generated/tokens" in m]
    for name in ("samples", "tokens", "cost"):
        parts = [found[f"generated/{name}/source-{i}"] for i in range(2)]
        assert sum(parts) == pytest.approx(found[f"generated/{name}"])
    assert found["generated/samples"] == 24
    assert found["generated/cost"] == pytest.approx(found["generated/tokens"] * 2.0 / 1e6)
    assert found["generated/tokens_per_second"] > 0
