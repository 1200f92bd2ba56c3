"""Accuracy over training: every kept model is scored once, whatever is killed."""

import json
from pathlib import Path

import pytest

from configs.settings.base import key_of
from configs.settings.evaluation import LEARNING_CURVE, EvaluateSettings, LearningCurve
from eval.tables import count_rows
from tasks.ablation.ablate import read_learning
from tasks.models.evaluate import evaluate
from tasks.report.results import answers_of, means_of
from tasks.store.store import Artifact
from tasks.tracking.log_result import curve_names
from tests.eval.evaluations_by_hand import evaluation, result
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
    monkeypatch.setattr("tasks.answers.distill.run_child", learner)
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


def test_the_curve_has_a_point_of_every_kept_model_and_of_the_result_which_cost_money_too(
    engine, tmp_path
):
    priced = LEARNING.engine_runtime.model_copy(update={"output_price": 2.0, "input_price": 0.0})
    settings = LEARNING.model_copy(update={"engine_runtime": priced})
    out, metrics = run(tmp_path, trained(tmp_path, 1, 2), settings)
    assert points(out) == [
        (1, {"accuracy/alpha": pytest.approx(1 / 3)}),
        (2, {"accuracy/alpha": pytest.approx(2 / 3)}),
        (4, {"accuracy/alpha": 1.0}),
    ]
    whole, each = 3 * 4 + 2 * 2, 3 * 3
    assert metrics["answers"] == whole + 2 * each
    assert metrics["completion_tokens"] == 5 * metrics["answers"]
    assert metrics["cost"] == pytest.approx(2e-6 * 5 * metrics["answers"])
    assert count_rows(out / "kept/step-00001/samples.parquet") == each
    assert curve_names(out) == {"accuracy/alpha"}


def test_without_a_curve_the_result_alone_is_scored_and_without_kept_models_no_curve(
    engine, tmp_path
):
    inputs = trained(tmp_path)
    with pytest.raises(ValueError, match="rl_math kept no model along the way; run it with keep"):
        run(tmp_path, inputs)
    out, metrics = run(tmp_path, inputs, SETTINGS)
    assert metrics["answers"] == 16
    assert not (out / LEARNING_CURVE).exists()
    assert not kept_models(out)


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


def test_a_benchmark_has_its_own_answers_also_where_two_share_a_source(tmp_path):
    """As LiveCodeBench v5 and v6 are windows of one source, and February is in both."""
    problems = [("a", "lcb", "2024-09-01"), ("b", "lcb", "2025-02-10"), ("c", "aime", None)]
    verdicts = {("a", 0): "AC", ("a", 1): "WA", ("b", 0): "AC", ("b", 1): "IE", ("c", 0): "WA"}
    found = answers_of(
        evaluation(
            tmp_path,
            [
                result("v5", 2, "lcb", date_to="2025-03-01"),
                result("v6", 1, "lcb", date_from="2025-02-01"),
                result("aime", 1),
            ],
            problems,
            verdicts,
        )
    )
    assert found["v5"] == {"a": {0: True, 1: False}, "b": {0: True}}
    assert found["v6"] == {"b": {0: True}}
    assert means_of(found["v5"]) == {"a": 0.5, "b": 1.0}
    assert means_of(found["aime"]) == {"c": 0.0}


def test_the_last_model_counts_with_as_many_answers_as_those_kept_along_the_way(tmp_path):
    two = {("a", 0): "AC", ("a", 1): "WA"}
    problems = [("a", "x", None)]
    evaluation(tmp_path / "kept/step-00002", [result("x", 2)], problems, two)
    four = two | {("a", 2): "AC", ("a", 3): "AC"}
    evaluation(tmp_path, [result("x", 4)], problems, four)
    assert read_learning(tmp_path) == {}  # no learning curve was asked for
    (tmp_path / LEARNING_CURVE).parent.mkdir()
    lines = [{"step": step, "time": 0.0, "metrics": {"accuracy/x": 0.5}} for step in (2, 6)]
    (tmp_path / LEARNING_CURVE).write_text("\n".join(map(json.dumps, lines)))
    both = ((1.0, 1), (0.0, 1))  # answers with an even and with an odd index
    assert read_learning(tmp_path) == {"x": {2: both, 6: both}}


def test_the_setting_is_part_of_a_key_only_where_it_is_set_and_must_fit_the_protocols():
    assert "learning_curve" not in key_of(SETTINGS)
    assert '"learning_curve":{"benchmarks":["alpha"],"k":3}' in key_of(LEARNING)
    for wrong, says in (
        ({"benchmarks": ["gamma"]}, "no protocol is called 'gamma'"),
        ({"k": 4}, r"learning_curve\.k=4 is more than protocol 'late' asks"),  # which asks two
    ):
        with pytest.raises(ValueError, match=says):
            EvaluateSettings.model_validate(SETTINGS.model_dump() | {"learning_curve": wrong})
