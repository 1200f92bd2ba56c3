"""What MLflow knows of finished stages: rows, checkpoint, scores, answers, and the ways between."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from klear.configs.settings.base import Settings
from klear.configs.settings.evaluation import BenchmarkProtocol
from klear.configs.settings.judging import JudgeSettings
from klear.eval.benchmarks.benchmarks import score_benchmark
from klear.eval.records import Problem, Rejected, Sample, Score
from klear.eval.records.tables import write_table
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.observe import tracker as tracker_module
from klear.tasks.observe.pages import Cards
from klear.tasks.observe.registry import log_complete
from klear.tasks.observe.stage_run import ANSWERS, StageRun
from klear.tasks.observe.tracker import Tracker
from klear.tasks.store.store import Artifact, Store
from tests.eval.evaluations_by_hand import STATEMENT, scored

PROBLEMS = [
    Problem(domain="math", prompt=f"{n} + 1?", answer=str(n + 1), source="sums") for n in range(3)
]


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
        self, parent: str = "", complete: bool = True, **knobs: int
    ) -> tuple[str, list[Artifact]]:
        """One run of all three stages; its id and results."""
        tracker = Tracker(self.uri, self.name)
        run_id = tracker.start_pipeline("tiny", {}, parent)
        observers = (Cards(self.store), tracker)
        with active(Run(store=self.store, run_id=run_id, observers=observers)):
            settings = Knobs.model_validate(knobs)
            rows = select(settings=Knobs())
            model = sft(rows, settings=Knobs(value=settings.value))
            scores = evaluate_sft(model, rows, settings=settings)
        if complete:
            log_complete(tracker, run_id, {r.stage: r for r in (rows, model, scores)})
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
        place = Place(mlflow_database, tmp_path_factory.mktemp("told"), "klear-told")
        _, results = place.chain()
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
    assert trained.data.params["value"] == "1"
    commit = place.store.manifest(scores).git_commit
    assert scored.data.tags["klear.git_commit"] == commit
    assert scored.data.tags["mlflow.source.git.commit"] == commit.rstrip("+")
    (output,) = place.run_of(rows).inputs.dataset_inputs  # and back to who read them
    assert (output.tags[0].value, trained_on.dataset.digest) == ("output", output.dataset.digest)


def test_a_checkpoint_is_a_version_with_its_stages_alias_and_no_copy_of_its_weights(logged):
    place, (_, model, _) = logged
    version = place.client.get_model_version_by_alias(place.name, "sft")
    assert version.tags["klear.artifact"] == f"sft/{model.key}"
    assert version.tags["klear.path"] == str(model.folder / "checkpoint")
    artifacts = Path(place.client.get_logged_model(version.tags["klear.model"]).artifact_location)
    assert not list(artifacts.rglob("*"))


def test_aliases_move_with_complete_runs_alone_and_all_of_them_together(place):
    place.chain(value=1, right=2)
    for complete, score in ((False, 2 / 3), (True, 1 / 3)):
        place.chain(value=2, right=1, complete=complete)
        for alias in ("best", "sft"):
            version = place.client.get_model_version_by_alias(place.name, alias)
            assert version.tags["score"] == f"{score:.6f}"


def test_best_is_the_highest_mean_among_the_checkpoints_of_that_run():
    def result(stage: str, **metrics: float) -> Artifact:
        fields = {"stage": stage, "key": "k", "digest": stage, "folder": Path(), "metrics": metrics}
        return Artifact.model_validate(fields)

    tracker, server = Mock(), Mock()
    means = {"sft": 0.25, "rl_math": 0.5, "rl_code": 0.5}
    tags = {
        n: {"klear.artifact": f"{n}/k", "klear.digest": n, "klear.model": f"m-{n}"} for n in means
    }
    server.version_tags.return_value = tags
    scores = {
        f"evaluate_{n}": result("e", **{"a/avg": v, "a/ci_high": 1}) for n, v in means.items()
    }
    log_complete(tracker, "run", {n: result(n) for n in means} | scores)
    tracker.put.call_args.args[1](server)
    moved = {c.args[1]: c.args[2] for c in server.set_registered_model_alias.call_args_list}
    graded = {c.args[1]: c.args[3] for c in server.set_model_version_tag.call_args_list}
    assert graded == {n: f"{v:.6f}" for n, v in means.items()}
    assert set(server.inputs.call_args.args[2]) == {"m-sft", "m-rl_math", "m-rl_code"}
    assert moved == {"sft": "sft", "math_rl": "rl_math", "code_rl": "rl_code", "best": "rl_math"}
    server.get_registered_model.return_value.aliases = moved
    server.version_tags.return_value = {n: tags[n] | {"score": graded[n]} for n in means}
    tracker.put.call_args.args[1](server)  # a cached run says none of it again
    assert server.set_registered_model_alias.call_count == len(moved)
    assert server.set_model_version_tag.call_count == len(moved)


def test_the_graded_answers_are_a_table_with_verdict_and_reason(logged):
    place, (*_, scores) = logged
    path = place.client.download_artifacts(scores.mlflow_run, ANSWERS)
    table = json.loads(Path(path).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert sorted(row["verdict"] for row in rows) == ["AC", "AC", "WA"]
    wrong = next(row for row in rows if row["verdict"] == "WA")
    assert (wrong["prompt"], wrong["reward"]) == ("2 + 1?", -1.0)
    assert wrong["text"].endswith("\\boxed{7}")
    listed = json.loads(place.run_of(scores).data.tags["mlflow.loggedArtifacts"])
    assert listed == [{"path": ANSWERS, "type": "table"}]


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
        history = place.client.get_metric_history(run_id, "loss")
        assert [m.step for m in history] == [1, 2, 3]
        assert len(place.run_of(model).outputs.model_outputs) == 1
        assert place.run_of(scores).info.status == "FINISHED"


def test_pictures_and_system_metrics_are_where_the_ui_looks_for_them(logged):
    place, results = logged
    pages = [place.client.list_artifacts(r.mlflow_run, "figures") for r in results]
    names = {a.path for page in pages for a in page}
    assert "figures/scores.svg" in names
    assert place.run_of(results[1]).data.metrics["system/system_memory_usage_megabytes"] > 1
