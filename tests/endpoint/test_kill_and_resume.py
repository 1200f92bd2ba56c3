"""Distilling over HTTP in a process that is killed with SIGKILL: nothing lost, nothing doubled,
flat memory, and no trace of the key in anything that is written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eval.records import Problem, Sample
from eval.tables import read_table, write_table

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-very-secret-0123456789"
CONCURRENCY, REQUESTS = 32, 1_200
FAULTS = ("429", "429 with Retry-After", "500", "hang", "cut stream", "truncated JSON",
          "another model answers", "404", "slow first token")  # fmt: skip
CLIENT = """
import logging, sys
from pathlib import Path
from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from tasks.stage.progress import Plain
from tasks.answers.distill import distill
from tasks.stage.run import Run, active
from tasks.store.store import Artifact, Store
from tasks.tracking.run_tracker import Tracker
from training.engines import endpoint

if sys.argv[4]:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)
endpoint.FIRST_DELAY_S = 0.02
problems, store, url, mlflow = sys.argv[1:]

def megabytes():
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * 4096 / 1e6

class Memory(Plain):
    last = 0
    def progress(self, stage, done, total, note):
        if done - self.last >= 100:
            self.last = done
            print('memory', int(done), megabytes(), flush=True)

engine = EngineSettings(
    kind='openai', model='teacher-r1', base_url=url,
    runtime=EngineRuntime(concurrency=32, silence_timeout_s=10.0, output_price=2.0),
)
tracker = Tracker(mlflow, 'test') if mlflow else None
tracked = {'tracker': tracker, 'run_id': tracker.start_pipeline('t', {})} if tracker else {}
run = Run(store=Store(Path(store)), display=Memory(), **tracked)
with active(run):
    made = distill(Artifact.of_folder(Path(problems)),
                   settings=SampleSettings(samples_per_prompt=2, engine=engine))
print('folder', made.folder)
"""


def one_percent_of_each(prompt: str, attempt: int) -> str:
    number = int(prompt.split()[1]) % 100 - 50  # a 404 before any answer is fatal
    return FAULTS[number] if attempt == 0 and 0 <= number < len(FAULTS) else ""


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    folder = tmp_path / "problems"
    folder.mkdir()
    rows = [
        Problem(domain="math", prompt=f"question {i}", answer="1", source="s")
        for i in range(REQUESTS // 2)
    ]
    write_table(folder / "kept.parquet", Problem, rows)
    return folder


def client(problems: Path, store: Path, url: str, log: Path) -> "subprocess.Popen[str]":
    with log.open("a") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(problems), str(store), url, ""],
            cwd=ROOT,
            env={**os.environ, "OPENAI_API_KEY": KEY},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def test_killed_in_the_middle_of_every_fault_it_ends_with_the_same_samples(
    endpoint_of, until, problems, tmp_path
):
    store, log = tmp_path / "store", tmp_path / "log"
    with endpoint_of(one_percent_of_each, latency_s=0.02, size=40_000) as endpoint:
        first = client(problems, store, endpoint.url, log)
        assert until(lambda: endpoint.answers.total() >= REQUESTS // 2, 120)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        second = client(problems, store, endpoint.url, log)
        said, _ = second.communicate(timeout=240)
        assert second.returncode == 0, log.read_text()[-3000:]
    lines = [line.split() for line in said.splitlines()]
    folder = Path(next(words[1] for words in lines if words[0] == "folder"))
    samples = list(read_table(folder / "samples.parquet", Sample))
    asked = list(read_table(problems / "kept.parquet", Problem))
    assert [(s.problem_id, s.index, s.text) for s in samples] == [
        (p.id, i, endpoint.right_answer(p.prompt)) for p in asked for i in range(2)
    ]
    # Only what was on its way when the process died was answered twice.
    assert 0 <= endpoint.answers.total() - REQUESTS <= CONCURRENCY
    assert max(endpoint.answers.values()) <= 2 + 2
    memory = [float(words[2]) for words in lines if words[0] == "memory"]
    texts = sum(len(s.text) for s in samples[REQUESTS // 2 :]) / 1e6
    assert texts > 20
    assert max(memory[1:]) - memory[1] < texts / 3
    manifest = json.loads((folder / "manifest.json").read_text())
    tokens = sum(s.completion_tokens for s in samples)
    assert manifest["metrics"]["cost"] == pytest.approx(tokens * 2.0 / 1e6)
    assert manifest["metrics"]["samples"] == REQUESTS


def test_the_key_is_in_no_file_log_or_mlflow_record(endpoint_of, problems, tmp_path):
    few = tmp_path / "few"
    few.mkdir()
    rows = list(read_table(problems / "kept.parquet", Problem))[:12]
    sources = (p.model_copy(update={"source": f"source-{i % 2}"}) for i, p in enumerate(rows))
    write_table(few / "kept.parquet", Problem, sources)
    mlflow = f"sqlite:///{tmp_path}/mlflow.db"
    with endpoint_of(one_percent_of_each) as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, str(few), str(tmp_path / "store"), endpoint.url, mlflow],
            cwd=tmp_path,
            env={**os.environ, "OPENAI_API_KEY": KEY, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert {b["key"] for b in endpoint.bodies} == {f"bearer {KEY}"}
    assert "HTTP Request" in done.stderr  # the client's own debug log was on
    assert KEY not in done.stdout + done.stderr
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
    parts = [{n: found[f"generated/{n}/source-{i}"] for n in ("samples", "tokens", "cost")}
             for i in range(2)]  # fmt: skip
    assert [p["samples"] for p in parts] == [12, 12]
    for name in ("samples", "tokens", "cost"):
        assert sum(p[name] for p in parts) == pytest.approx(found[f"generated/{name}"])
    assert found["generated/cost"] == pytest.approx(found["generated/tokens"] * 2.0 / 1e6)
    assert found["generated/tokens_per_second"] > 0
