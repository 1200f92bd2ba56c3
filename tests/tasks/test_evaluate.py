"""The evaluate stage, with a scripted engine in place of the child process."""

import runpy
from pathlib import Path

import pytest

from configs.settings.evaluation import BenchmarkProtocol, EvaluateSettings
from eval.benchmarks import benchmarks
from eval.judge import judge
from eval.records import Sample, Score
from eval.tables import read_table
from tasks.answers import judge as judging
from tasks.models import evaluate as evaluating
from tasks.models import train
from tasks.models.evaluate import RESULTS, evaluate, requests_for
from tests.tasks.evaluations_by_hand import (
    ALPHA,
    BETA_LATE,
    SETTINGS,
    A,
    B,
    Engine,
    FakeJudge,
    artifacts,
    scripted,
)
from training.engines.interface import Request
from training.launch.jobs import GenerateJob


@pytest.fixture
def engine(monkeypatch) -> Engine:
    return scripted(monkeypatch)


def run(root: Path, settings: EvaluateSettings = SETTINGS) -> tuple[Path, dict[str, float]]:
    out = root / "out"
    out.mkdir(parents=True, exist_ok=True)
    return out, dict(evaluate.body(out, *artifacts(root), settings=settings))


def outputs(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}


def test_protocols_share_samples_and_a_samples_seed_does_not_depend_on_what_is_beside_it():
    few, many = BenchmarkProtocol(name="x", k=2), BenchmarkProtocol(name="y", k=4)
    requests = requests_for((few, many), (A, A[:1]), seed=0)
    assert [sum(r.problem_id == p.id for r in requests) for p in A] == [4, 2, 2]
    assert len({(r.problem_id, r.index) for r in requests}) == len(requests)
    alone = requests_for((ALPHA,), (A,), seed=1)
    beside = requests_for((BETA_LATE, ALPHA), (B, A), seed=1)
    assert alone == [r for r in beside if r.prompt.startswith("a")]
    assert len({r.seed for r in beside}) == len(beside)
    assert alone[0].seed != requests_for((ALPHA,), (A,), seed=2)[0].seed


def test_scores_counts_and_statement_follow_from_the_answers_of_one_engine_start(engine, tmp_path):
    out, metrics = run(tmp_path)
    (job,) = engine.jobs
    assert (job.engine.kind, job.engine.yarn_factor) == ("transformers", 2.5)
    assert job.engine.model == str(tmp_path / "model" / "checkpoint")
    assert job.sampling == SETTINGS.sampling
    alpha, late = RESULTS.validate_json((out / "results.json").read_bytes())
    assert (alpha.avg, alpha.pass_at_k, alpha.problems, alpha.samples) == (0.5, 1.0, 3, 12)
    assert (late.avg, late.problems, late.date_from) == (0.0, 2, "2025-02-01")
    assert metrics["alpha/avg"] == 0.5
    assert metrics["late/truncated"] == 1 / 2  # all of b1, none of b2
    assert metrics["alpha/mean_tokens"] == 5
    assert metrics["completion_tokens"] == 5 * (3 * 4 + 2 * 2)
    assert {f"alpha/{n}" for n in ("ci_low", "ci_high", "pass_at_k", "unscored")} <= set(metrics)
    statement, (checkpoint, _) = alpha.statement, artifacts(tmp_path)
    assert statement.checkpoint == checkpoint.digest[:16]
    assert statement.engine.startswith("transformers ")
    assert (statement.temperature, statement.top_p, statement.max_tokens) == (0.6, 0.95, 8)
    assert (statement.yarn_factor, statement.seed, statement.sandbox) == (2.5, 1234, "bubblewrap")
    assert len(statement.template) == 16


def test_outputs_are_equal_wherever_the_checkpoint_lies_and_however_long_judging_took(
    engine, tmp_path
):
    here, _ = run(tmp_path / "here")
    there, _ = run(tmp_path / "there")
    assert outputs(here) == outputs(there)
    assert {s.model for s in read_table(here / "samples.parquet", Sample)} == {"sft"}
    assert {s.seconds for s in read_table(here / "scores.parquet", Score)} == {0.0}


def test_a_killed_evaluation_asks_only_for_what_is_missing(engine, tmp_path):
    engine.patience = 7
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path)
    engine.patience = 10**9
    out, _ = run(tmp_path)
    assert engine.answered == 16
    again, _ = run(tmp_path / "undisturbed")
    assert outputs(out) == outputs(again)


def test_with_all_answers_on_file_no_engine_starts_and_only_missing_verdicts_are_judged(
    engine, tmp_path
):
    out, _ = run(tmp_path)
    first = outputs(out)
    scores = out / ".resume" / "scores.jsonl"
    lines = scores.read_text().splitlines(keepends=True)
    scores.write_text("".join(lines[:10]) + lines[10][:20])  # killed while writing the 11th
    FakeJudge.asked = 0
    run(tmp_path)
    assert len(engine.jobs) == 1
    assert FakeJudge.asked == 16 - 10
    assert outputs(out) == first


def test_the_real_judge_scores_what_a_model_wrote_and_a_failed_answer_is_unscored(
    engine, tmp_path, monkeypatch
):
    monkeypatch.setattr(judging, "Judge", judge.Judge)
    texts = ["<think>so</think>\\boxed{1}", "<think>so</think>\\boxed{2}", "\\boxed{1}", ""]
    given = engine.sample

    def sample(request: Request, job: GenerateJob) -> Sample:
        lost = {"finish_reason": "error"} if request.index == 3 else {}
        return given(request, job).model_copy(update={"text": texts[request.index], **lost})

    monkeypatch.setattr(engine, "sample", sample)
    _, metrics = run(tmp_path)
    assert metrics["alpha/avg"] == pytest.approx(2 / 3)  # without a think block: less reward only
    assert metrics["alpha/unscored"] == 3


def test_a_benchmark_that_is_missing_stops_the_stage_before_anything_is_generated(engine, tmp_path):
    settings = EvaluateSettings(protocols=(ALPHA, BenchmarkProtocol(name="gamma")))
    with pytest.raises(ValueError, match=r"'gamma'.*alpha, beta"):
        run(tmp_path, settings)
    with pytest.raises(ValueError, match=r"evaluate\.protocols is empty"):
        run(tmp_path, EvaluateSettings(protocols=()))
    assert not engine.jobs


def test_another_judge_is_another_version_of_rl_and_evaluate_and_of_no_other(monkeypatch):
    monkeypatch.setattr(benchmarks, "GRADER_VERSION", benchmarks.GRADER_VERSION + 1)
    later = {module: runpy.run_path(str(Path(module.__file__))) for module in (train, evaluating)}
    assert later[evaluating]["evaluate"].version == evaluate.version + 1
    assert later[train]["rl"].version == train.rl.version + 1
    for name in ("sft", "base"):
        assert later[train][name].version == getattr(train, name).version
