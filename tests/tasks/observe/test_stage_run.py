"""What MLflow knows of finished stages: rows, checkpoint, scores, answers, and the ways between."""

import json
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
from klear.tasks.observe.mlflow_client import as_mlflow_model
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


def test_a_checkpoint_is_a_version_in_words_and_no_copy_of_its_weights(logged):
    place, (_, model, _) = logged
    version = place.client.get_model_version_by_alias(place.name, "sft")
    assert version.tags["klear.artifact"] == f"sft/{model.key}"
    assert version.description == "sft · epochs=2, select.seed=1 · math 66.7"
    folder = str(model.folder / "checkpoint")
    artifacts = Path(place.client.get_logged_model(version.tags["klear.model"]).artifact_location)
    (pointer,) = artifacts.rglob("*")
    assert pointer.name == "MLmodel"
    assert f"source_model_name: {folder}\n" in pointer.read_text()


def test_a_version_that_does_not_say_where_its_weights_are_says_so_after_the_next_run(place):
    place.chain()
    version = place.client.get_model_version_by_alias(place.name, "best")
    model = place.client.get_logged_model(version.tags["klear.model"])
    pointer = Path(model.artifact_location) / "MLmodel"
    pointer.unlink()  # as older versions left it
    place.chain()
    assert version.tags["klear.artifact"].split("/")[1] in pointer.read_text()


def test_the_page_of_a_model_has_its_settings_and_its_scores_on_the_rows_that_gave_them(logged):
    place, (rows, _, scores) = logged
    (read,) = place.run_of(scores).inputs.model_inputs
    model = place.client.get_logged_model(read.model_id)
    assert model.params["sft.value"] == "1"
    (score,) = [m for m in model.metrics if m.key == "sums/avg"]
    assert score.value == pytest.approx(2 / 3)
    assert (score.dataset_name, score.dataset_digest) == ("select", rows.digest[:16])


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


def test_a_worse_last_run_moves_last_and_never_best(place):
    for right, value, complete in ((2, 1, True), (3, 3, False), (1, 2, True)):
        place.chain(value=value, right=right, complete=complete)
    scores = {
        alias: place.client.get_model_version_by_alias(place.name, alias).tags["score"]
        for alias in ("best", "last", "sft")
    }
    assert scores == {"best": f"{2 / 3:.6f}", "last": f"{1 / 3:.6f}", "sft": f"{1 / 3:.6f}"}
    place.chain(value=4, right=3, changed=(("evaluate.sampling.temperature", "0"),))
    assert (
        place.client.get_model_version_by_alias(place.name, "best").tags["score"] == scores["best"]
    )


def test_best_is_the_highest_mean_and_the_earliest_of_equal_ones(tmp_path):
    def result(stage: str, **metrics: float) -> Artifact:
        fields = {"stage": stage, "key": "k", "digest": stage, "folder": Path(), "metrics": metrics}
        return Artifact.model_validate(fields)

    tracker, server, store = Mock(changed=()), Mock(), Mock()
    store.manifest.side_effect = lambda artifact: Mock(stage=artifact.stage, key="k", inputs=())
    means = {"sft": 0.25, "rl_math": 0.5, "rl_code": 0.5}
    versions = {
        stage: Mock(version=n, description=None, tags={
            "klear.artifact": f"{stage}/k", "klear.digest": stage, "klear.model": f"m-{stage}"})
        for n, stage in enumerate(means, 1)
    }  # fmt: skip
    server.versions.return_value = [*versions.values()]
    scores = {
        f"evaluate_{n}": result("e", **{"sums/avg": v, "sums/ci_high": 1}) for n, v in means.items()
    }
    log_complete(tracker, "run", {n: result(n) for n in means} | scores, SETTINGS, store)
    send = tracker.put.call_args.args[1]
    send(server)
    moved = {c.args[1]: c.args[2] for c in server.set_registered_model_alias.call_args_list}
    assert set(server.inputs.call_args.args[2]) == {"m-sft", "m-rl_math", "m-rl_code"}
    assert moved == {"sft": "1", "math_rl": "2", "code_rl": "3", "last": "3", "best": "2"}
    texts = {c.args[1]: c.args[2] for c in server.update_model_version.call_args_list}
    assert texts == {
        "1": "sft · math 25.0", "2": "rl_math · math 50.0", "3": "rl_code · math 50.0"
    }  # fmt: skip
    server.get_registered_model.return_value.aliases = moved
    for call in server.set_model_version_tag.call_args_list:
        _, number, name, value = call.args
        [*versions.values()][int(number) - 1].tags[name] = value
    for number, text in texts.items():
        [*versions.values()][int(number) - 1].description = text
    server.reset_mock()
    send(server)  # a cached run says none of it again
    assert not server.set_registered_model_alias.called
    assert not server.set_model_version_tag.called
    assert not server.update_model_version.called


def test_every_problem_is_in_the_table_of_answers_with_its_verdicts(logged):
    place, (*_, scores) = logged
    path = place.client.download_artifacts(scores.mlflow_run, ANSWERS)
    table = json.loads(Path(path).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["prompt"], row["expected"], row["verdicts"]) for row in rows] == [
        ("0 + 1?", "1", "AC"), ("1 + 1?", "2", "AC"), ("2 + 1?", "3", "WA"),
    ]  # fmt: skip
    assert (rows[2]["right"], rows[2]["answers"]) == (0, 1)
    assert rows[2]["answer"].endswith("\\boxed{7}")
    listed = json.loads(place.run_of(scores).data.tags["mlflow.loggedArtifacts"])
    assert {"path": ANSWERS, "type": "table"} in listed


def test_a_dataset_has_its_columns_and_its_first_rows(logged):
    place, (rows, *_) = logged
    (written,) = place.run_of(rows).inputs.dataset_inputs
    columns = {c["name"]: c["type"] for c in json.loads(written.dataset.schema)["mlflow_colspec"]}
    assert columns["prompt"] == "string"
    path = place.client.download_artifacts(rows.mlflow_run, FIRST_ROWS)
    table = json.loads(Path(path).read_text())
    assert table == json.loads(written.dataset.profile)["first_rows"]
    at = table["columns"].index("prompt")
    assert [row[at] for row in table["data"]] == [p.prompt for p in PROBLEMS]


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


def test_pictures_and_system_metrics_are_where_the_ui_looks_for_them(logged):
    place, results = logged
    pages = [place.client.list_artifacts(r.mlflow_run, "figures") for r in results]
    names = {a.path for page in pages for a in page}
    assert "figures/scores.svg" in names
    assert place.run_of(results[1]).data.metrics["system/system_memory_usage_megabytes"] > 1
