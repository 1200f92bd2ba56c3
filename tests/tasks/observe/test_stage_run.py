"""What MLflow knows of finished stages: rows, checkpoint, scores, answers, and the ways between."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow.transformers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from klear.configs.settings.base import Settings
from klear.configs.settings.evaluation import BenchmarkProtocol
from klear.configs.settings.judging import JudgeSettings
from klear.configs.settings.pipeline import Pipeline
from klear.eval.benchmarks.benchmarks import score_benchmark
from klear.eval.records import Problem, Rejected, Sample, Score
from klear.eval.records.tables import write_table
from klear.tasks.engine import cache
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.observe import tracker as tracker_module
from klear.tasks.observe.mlflow_client import Mlflow, as_mlflow_model
from klear.tasks.observe.pages import Cards
from klear.tasks.observe.registry import log_complete
from klear.tasks.observe.stage_run import ANSWERS, FIRST_ROWS, StageRun
from klear.tasks.observe.tracker import Tracker
from klear.tasks.store.store import Artifact, Store
from tests.conftest import compute_here
from tests.eval.evaluations_by_hand import STATEMENT, scored

pytestmark = pytest.mark.usefixtures("in_this_process")

PROBLEMS = [
    Problem(domain="math", prompt=f"{n} + 1?", answer=str(n + 1), source="sums") for n in range(3)
]


SUMS = {"name": "sums", "kind": "generated", "family": "countdown", "size": 3}
SCRIPTED = {"engine": {"kind": "scripted"}}
SETTINGS = Pipeline.model_validate({
    "profile": "told", "collect": {"sources": [SUMS]}, "benchmarks": {"sources": [SUMS]},
    "distill": SCRIPTED, "sample": SCRIPTED, "evaluate": {"protocols": [{"name": "sums", "k": 1}]},
})  # fmt: skip


class Knobs(Settings):
    value: int = 1
    right: int = 2
    judge: JudgeSettings = JudgeSettings()


@stage(version=1)
def select(out: Path, *, settings: Knobs) -> Metrics:
    write_table(out / "kept.parquet", Problem, PROBLEMS)
    write_table(out / "rejected.parquet", Rejected, [Rejected(id="x", reason="short", row="{}")])
    return {"kept": 3}


@stage(version=1)
def sft(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "checkpoint").mkdir(exist_ok=True)
    (out / "checkpoint/model.safetensors").write_bytes(b"w" * 1_000_000 + bytes([settings.value]))
    (out / "logs").mkdir(exist_ok=True)
    lines = [{"step": t, "time": 1e9 + t, "metrics": {"loss": 1 / t}} for t in (1, 2, 3)]
    (out / "logs/metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    if "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL" in os.environ:
        time.sleep(0.5)  # to be measured
    return {"parameters": 4}


@stage(version=1)
def evaluate_sft(out: Path, model: Artifact, rows: Artifact, *, settings: Knobs) -> Metrics:
    scores = {}
    with_tables = []
    for i, p in enumerate(PROBLEMS):
        right = i < settings.right
        text = f"<think>\n</think>\n\\boxed{{{p.answer if right else 7}}}"
        with_tables.append(Sample(problem_id=p.id, index=0, model="sft", text=text))
        scores[p.id, 0] = scored(p.id, right, reward=1.0 if right else -1.0)
    write_table(out / "problems.parquet", Problem, PROBLEMS)
    write_table(out / "samples.parquet", Sample, with_tables)
    write_table(out / "scores.parquet", Score, scores.values())
    protocol = BenchmarkProtocol(name="sums", k=1)
    result = score_benchmark(protocol, PROBLEMS, {}, scores, STATEMENT)
    (out / "results.json").write_text(f"[{result.model_dump_json()}]")
    (out / "plots").mkdir(exist_ok=True)
    (out / "plots/scores.svg").write_text("<svg/>")
    return {"sums/avg": settings.right / 3}


class Place:
    def __init__(self, uri: str, root: Path, name: str) -> None:
        self.uri, self.store = uri, Store(root / "store")
        self.root, self.name = root, name
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.client.create_experiment(name, str(root / "artifacts"))

    def chain(
        self, parent: str = "", complete: bool = True, changed: Any = (), **knobs: int
    ) -> tuple[str, list[Artifact]]:
        """One run of all three stages; its id and results."""
        tracker = Tracker(self.uri, self.name, changed)
        run_id = tracker.start_pipeline("tiny", {}, parent)
        observers = (Cards(self.store), tracker)
        with active(Run(store=self.store, run_id=run_id, observers=observers)):
            settings = Knobs.model_validate(knobs)
            rows = select(settings=Knobs())
            model = sft(rows, settings=Knobs(value=settings.value))
            scores = evaluate_sft(model, rows, settings=settings)
        if complete:
            results = {r.stage: r for r in (rows, model, scores)}
            log_complete(tracker, run_id, results, SETTINGS, self.store)
        tracker.finish(run_id, "FINISHED")
        assert tracker.refused == 0
        return run_id, [rows, model, scores]

    def run_of(self, artifact: Artifact):
        return self.client.get_run(self.store.manifest(artifact).mlflow_run)


@pytest.fixture(scope="module")
def logged(
    mlflow_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Place, list[Artifact]]]:
    """One run that was told whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
        patch.setattr(cache, "run_process", compute_here)
        place = Place(mlflow_database, tmp_path_factory.mktemp("told"), "klear-told")
        changes = {"sft.epochs": "2", "rl_code.steps": "4", "select.seed": "1", "evaluates": "3"}
        _, results = place.chain(changed=[*changes.items()])
        yield place, results


@pytest.fixture
def place(mlflow_database: str, tmp_path: Path) -> Place:
    return Place(mlflow_database, tmp_path, f"klear-{tmp_path.name}")


def test_from_a_score_to_the_checkpoint_the_rows_the_config_and_the_commit(logged):
    place, (rows, model, scores) = logged
    scored = place.run_of(scores)
    (read,) = scored.inputs.model_inputs
    checkpoint = place.client.get_logged_model(read.model_id)
    assert checkpoint.tags["klear.digest"] == model.digest
    assert checkpoint.tags["klear.path"] == str(model.folder / "checkpoint")
    assert checkpoint.params["sft.value"] == "1"
    (score,) = [m for m in checkpoint.metrics if m.key == "sums/avg"]
    assert score.value == pytest.approx(2 / 3)
    assert (score.dataset_name, score.dataset_digest) == ("select", rows.digest[:16])
    trained = place.client.get_run(checkpoint.source_run_id)
    (trained_on,) = [d for d in trained.inputs.dataset_inputs if d.tags[0].value == "training"]
    assert (trained_on.dataset.name, trained_on.dataset.digest) == ("select", rows.digest[:16])
    assert json.loads(trained_on.dataset.profile)["num_rows"] == 3
    assert json.loads(trained_on.dataset.source)["uri"] == str(rows.folder)
    assert trained.data.params["sft.value"] == "1"
    commit = place.store.manifest(scores).git_commit
    assert scored.data.tags["klear.git_commit"] == commit
    assert scored.data.tags["mlflow.source.git.commit"] == commit.rstrip("+")
    (output,) = place.run_of(rows).inputs.dataset_inputs  # and back to who read them
    assert (output.tags[0].value, trained_on.dataset.digest) == ("output", output.dataset.digest)
    # The checkpoint is a version in words, and no copy of its weights.
    version = place.client.get_model_version_by_alias(place.name, "sft")
    assert version.tags["klear.artifact"] == f"sft/{model.key}"
    assert version.description == "sft · epochs=2, select.seed=1 · math 66.7"
    (pointer,) = Path(checkpoint.artifact_location).rglob("*")
    assert pointer.name == "MLmodel"
    assert f"source_model_name: {model.folder / 'checkpoint'}\n" in pointer.read_text()


def test_a_version_loads_by_transformers_from_where_its_weights_are_or_names_the_folder(tmp_path):
    folder = tmp_path / "checkpoint"
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 3}
    Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).save_pretrained(folder)
    words = WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    as_mlflow_model(folder, "d" * 64).save(str(tmp_path / "MLmodel"))
    loaded = mlflow.transformers.load_model(str(tmp_path))
    assert loaded.model.config.hidden_size == 8
    assert loaded.tokenizer("a").input_ids == [0]
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=re.escape(str(folder))):
        mlflow.transformers.load_model(str(tmp_path))


def test_best_is_the_highest_mean_and_the_earliest_of_equal_ones_and_last_is_the_last(place):
    def version(alias: str) -> Any:
        return place.client.get_model_version_by_alias(place.name, alias)

    for right, value, complete in ((2, 1, True), (3, 3, False), (1, 2, True)):
        place.chain(value=value, right=right, complete=complete)
    best = version("best")
    scores = {alias: version(alias).tags["score"] for alias in ("best", "last", "sft")}
    assert scores == {"best": f"{2 / 3:.6f}", "last": f"{1 / 3:.6f}", "sft": f"{1 / 3:.6f}"}
    place.chain(value=5, right=2)
    assert (version("best").version, version("last").tags["score"]) == (
        best.version,
        scores["best"],
    )
    last = place.client.get_logged_model(version("last").tags["klear.model"])
    pointer = Path(last.artifact_location) / "MLmodel"
    pointer.unlink()  # as older versions left it
    with pytest.MonkeyPatch.context() as patch:  # what the server has is not said again
        for request in ("set_registered_model_alias", "set_model_version_tag",
                        "update_model_version"):  # fmt: skip
            patch.setattr(Mlflow, request, Mock(side_effect=AssertionError(request)))
        place.chain(value=5, right=2)
    assert version("last").tags["klear.artifact"].split("/")[1] in pointer.read_text()
    place.chain(value=4, right=3, changed=(("evaluate.sampling.temperature", "0"),))
    assert version("best").version == best.version  # it was measured otherwise


def test_tables_pictures_and_system_metrics_are_where_the_ui_looks_for_them(logged):
    """Every problem with its verdicts; of a dataset its columns and first rows."""
    place, (rows, model, scores) = logged

    def table(run: str, name: str) -> dict[str, Any]:
        return json.loads(Path(place.client.download_artifacts(run, name)).read_text())

    answers = table(scores.mlflow_run, ANSWERS)
    answered = [dict(zip(answers["columns"], row, strict=True)) for row in answers["data"]]
    assert [(row["prompt"], row["expected"], row["verdicts"]) for row in answered] == [
        ("0 + 1?", "1", "AC"), ("1 + 1?", "2", "AC"), ("2 + 1?", "3", "WA"),
    ]  # fmt: skip
    assert (answered[2]["right"], answered[2]["answers"]) == (0, 1)
    assert answered[2]["answer"].endswith("\\boxed{7}")
    listed = json.loads(place.run_of(scores).data.tags["mlflow.loggedArtifacts"])
    assert {"path": ANSWERS, "type": "table"} in listed
    (written,) = place.run_of(rows).inputs.dataset_inputs
    columns = {c["name"]: c["type"] for c in json.loads(written.dataset.schema)["mlflow_colspec"]}
    assert columns["prompt"] == "string"
    first = table(rows.mlflow_run, FIRST_ROWS)
    assert first == json.loads(written.dataset.profile)["first_rows"]
    at = first["columns"].index("prompt")
    assert [row[at] for row in first["data"]] == [p.prompt for p in PROBLEMS]
    figures = {a.path for a in place.client.list_artifacts(scores.mlflow_run, "figures")}
    assert "figures/scores.svg" in figures
    assert place.run_of(model).data.metrics["system/system_memory_usage_megabytes"] > 1


def test_the_rollouts_of_a_stage_are_histograms(tmp_path):
    row = {"step": 1, "tokens": 3, "reward": 1.0}
    pq.write_table(pa.Table.from_pylist([row, row | {"step": 2, "reward": None}]),
                   tmp_path / "rollouts.parquet")  # fmt: skip
    server = Mock()
    StageRun(Mock(), "parent", Mock(), {}, tmp_path).histograms(server)
    (run, figure, name), _ = server.log_figure.call_args
    assert (run, name) == ("", "figures/rollouts.png")
    assert [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes] == [2, 1]


def test_what_a_killed_run_published_but_did_not_tell_is_told_once_by_its_retry(place, monkeypatch):
    monkeypatch.setattr(tracker_module, "SECONDS_FOR_AN_ID", 0.0)
    tracker = Tracker(place.uri, place.name)
    parent = tracker.start_pipeline("tiny", {})
    monkeypatch.setattr(tracker, "put", lambda *_: None)  # killed before anything was sent
    with active(Run(store=place.store, run_id=parent, observers=(tracker,))):
        rows = select(settings=Knobs())
        evaluate_sft(sft(rows, settings=Knobs()), rows, settings=Knobs())
    for _ in range(2):
        _, (_, model, scores) = place.chain(parent)
        run_id = place.store.manifest(model).mlflow_run
        history = place.client.get_metric_history(run_id, "sft/loss")
        assert [m.step for m in history] == [1, 2, 3]
        assert len(place.run_of(model).outputs.model_outputs) == 1
        assert place.run_of(scores).info.status == "FINISHED"
