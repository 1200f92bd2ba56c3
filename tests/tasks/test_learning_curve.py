"""Accuracy over training: every kept model is scored once, whatever is killed."""

import json
from pathlib import Path

import pytest

from configs.settings.base import key_of
from configs.settings.evaluation import LEARNING_CURVE, EvaluateSettings, LearningCurve
from eval.tables import count_rows
from tasks.models.evaluate import evaluate
from tasks.report.training import stage_figures
from tasks.store.store import Artifact
from tasks.tracking.log_result import curve_names
from tests.tasks.evaluations_by_hand import SETTINGS, Engine, artifacts, scripted
from training.engines.interface import Request
from training.launch.jobs import GenerateJob
from training.layout import kept_model, kept_models

LEARNING = SETTINGS.model_copy(update={"learning_curve": LearningCurve(k=3, benchmarks=("alpha",))})


class Learner(Engine):
    """Knows as many of the three problems as its folder's step says; the result knows them all."""

    def sample(self, request: Request, job: GenerateJob):
        step = Path(job.engine.model).name.rpartition("-")[2]
        knows = int(step) if step.isdigit() else 3
        text = "right" if request.prompt < f"a{knows}" else "wrong"
        return super().sample(request, job).model_copy(update={"text": text})


@pytest.fixture
def engine(monkeypatch) -> Engine:
    scripted(monkeypatch)
    learner = Learner()
    monkeypatch.setattr("tasks.answers.asking.run_child", learner)
    return learner


def trained(root: Path, *steps: int) -> tuple[Artifact, Artifact]:
    """A model after four rollout steps that kept those of `steps`, and the benchmarks."""
    model, bench = artifacts(root)
    for step in steps:
        kept_model(model.folder, step).mkdir(parents=True)
        (kept_model(model.folder, step) / "chat_template.jinja").write_text("{{ messages }}")
    found = Artifact.of_folder(model.folder, "rl_math")
    return found.model_copy(update={"metrics": {"rollout_steps": 4.0}}), bench


def run(root: Path, inputs: tuple[Artifact, Artifact], settings: EvaluateSettings = LEARNING):
    out = root / "out"
    out.mkdir(exist_ok=True)
    return out, dict(evaluate.body(out, *inputs, settings=settings))


def points(out: Path) -> list[tuple[int, dict[str, float]]]:
    lines = map(json.loads, (out / LEARNING_CURVE).read_text().splitlines())
    return [(line["step"], line["metrics"]) for line in lines]


def test_the_curve_has_a_point_of_every_kept_model_and_of_the_result(engine, tmp_path):
    out, metrics = run(tmp_path, trained(tmp_path, 1, 2))
    assert points(out) == [
        (1, {"accuracy/alpha": pytest.approx(1 / 3)}),
        (2, {"accuracy/alpha": pytest.approx(2 / 3)}),
        (4, {"accuracy/alpha": 1.0}),
    ]
    whole, each = 3 * 4 + 2 * 2, 3 * 3
    assert metrics["answers"] == whole + 2 * each
    assert metrics["completion_tokens"] == 5 * metrics["answers"]
    assert count_rows(out / "kept/step-00001/samples.parquet") == each
    assert curve_names(out) == {"accuracy/alpha"}
    assert "learning_curve" in stage_figures("evaluate_rl_math", out)


def test_a_killed_evaluation_goes_on_at_the_answer_where_it_was(engine, tmp_path):
    inputs = trained(tmp_path, 1, 2)
    engine.patience = 16 + 9 + 4  # in the middle of the second kept model
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, inputs)
    engine.patience = 10**9
    out, metrics = run(tmp_path, inputs)
    assert engine.answered == 16 + 9 + 9
    assert [step for step, _ in points(out)] == [1, 2, 4]
    assert metrics["answers"] == 16 + 18


def test_without_a_curve_the_result_alone_is_scored(engine, tmp_path):
    out, metrics = run(tmp_path, trained(tmp_path, 1, 2), SETTINGS)
    assert metrics["answers"] == 16
    assert not (out / LEARNING_CURVE).exists()
    assert not kept_models(out)


def test_a_curve_of_a_model_that_kept_none_is_refused_with_the_fix(engine, tmp_path):
    with pytest.raises(ValueError, match="rl_math kept no model along the way; run it with keep"):
        run(tmp_path, trained(tmp_path))


def test_answers_of_kept_models_cost_money_too(engine, tmp_path):
    """Five tokens an answer, at two per million."""
    priced = LEARNING.engine_runtime.model_copy(update={"output_price": 2.0, "input_price": 0.0})
    settings = LEARNING.model_copy(update={"engine_runtime": priced})
    _, metrics = run(tmp_path, trained(tmp_path, 1, 2), settings)
    assert metrics["cost"] == pytest.approx(2e-6 * 5 * (16 + 18))


def test_results_from_before_there_were_curves_are_still_found():
    """At its default the setting is no part of a key; otherwise it is."""
    assert "learning_curve" not in key_of(SETTINGS)
    assert '"learning_curve":{"benchmarks":["alpha"],"k":3}' in key_of(LEARNING)


def test_a_curve_of_a_benchmark_without_a_protocol_is_refused():
    told = SETTINGS.model_dump() | {"learning_curve": {"benchmarks": ["gamma"]}}
    with pytest.raises(ValueError, match="no protocol is called 'gamma'"):
        EvaluateSettings.model_validate(told)


def test_the_curve_asks_no_more_of_a_kept_model_than_of_the_last():
    told = SETTINGS.model_dump() | {"learning_curve": {"k": 4}}  # `late` asks two
    with pytest.raises(ValueError, match=r"learning_curve\.k=4 is more than protocol 'late' asks"):
        EvaluateSettings.model_validate(told)
