"""The evaluate stage and accuracy over training, with a scripted engine in place of the child."""

import json
import runpy
from pathlib import Path

import pytest

from klear.configs.settings import judging
from klear.configs.settings.engines import Sampling
from klear.configs.settings.evaluation import (
    LEARNING_CURVE,
    PAPER_PROTOCOLS,
    BenchmarkProtocol,
    EvaluateSettings,
    LearningCurve,
)
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.benchmarks.benchmarks import score_benchmark
from klear.eval.judge.ends import MACHINE_FAILED
from klear.eval.programs.lcb_runner import official
from klear.eval.records import Problem, Sample, Score, StdinCase, TestSuite
from klear.eval.records.tables import count_rows, read_table, write_table
from klear.tasks.ablation.ablate import read_learning
from klear.tasks.answers import distill
from klear.tasks.answers import judge as judging_stage
from klear.tasks.models import evaluate as evaluating
from klear.tasks.models import train
from klear.tasks.models.evaluate import RESULTS, evaluate, judge_all, requests_for
from klear.tasks.observe.stage_run import curve_names
from klear.tasks.report.results import answers_of, means_of
from klear.tasks.store.store import SCRATCH, Artifact
from klear.training.engines.generate import Journal, journal_path
from klear.training.engines.interface import Request
from klear.training.launch.jobs import GenerateJob
from klear.training.launch.result_files import StepLines, kept_model, kept_models, read_lines
from tests.eval.evaluations_by_hand import STATEMENT, evaluation, math_problem, result, scored
from tests.tasks.manifests_by_hand import folder_with

A = [math_problem(f"a{i}", "alpha") for i in range(3)]
B = [math_problem(f"b{i}", "beta", date=f"2025-0{i + 1}-01") for i in range(3)]
ALPHA = BenchmarkProtocol(name="alpha", k=4)
BETA_LATE = BenchmarkProtocol(name="late", source="beta", k=2, date_from="2025-02-01")
SETTINGS = EvaluateSettings(
    protocols=(ALPHA, BETA_LATE), engine="transformers", yarn_factor=2.5,
    sampling=Sampling(max_tokens=8),
)  # fmt: skip


class Engine:
    """Stands in for the child: answers at most `patience` requests, then fails."""

    def __init__(self) -> None:
        self.patience = 10**9
        self.jobs: list[GenerateJob] = []
        self.answered = 0

    def __call__(self, job: GenerateJob, out: Path) -> dict[str, float]:
        self.jobs.append(job)
        with Journal(journal_path(out)) as journal:
            for line in reversed(job.requests.read_text().splitlines()):  # any order will do
                request = Request(**json.loads(line))
                if (request.problem_id, request.index) in journal:
                    continue
                if self.answered == self.patience:
                    raise RuntimeError("killed")
                self.answered += 1
                journal.append(self.sample(request, job))
        return {}

    def sample(self, request: Request, job: GenerateJob) -> Sample:
        right = request.prompt.startswith("a") and request.index < 2
        ended = "length" if request.prompt == "b1" else "stop"
        return request.answered(job.engine.model, "right" if right else "wrong", ended, 0, 5)


def artifacts(root: Path) -> tuple[Artifact, Artifact]:
    model, bench = root / "model", root / "bench"
    (model / "checkpoint").mkdir(parents=True, exist_ok=True)
    (model / "checkpoint" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return Artifact.of_folder(model, "sft"), folder_with(bench, kept=[*A, *B])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, scripted: object) -> Engine:
    answers = Engine()
    monkeypatch.setattr(distill, "run_child", answers)
    return answers


def run(
    root: Path,
    settings: EvaluateSettings = SETTINGS,
    inputs: tuple[Artifact, Artifact] | None = None,
) -> tuple[Path, dict[str, float]]:
    out = root / "out"
    out.mkdir(parents=True, exist_ok=True)
    return out, dict(evaluate.body(out, *(inputs or artifacts(root)), settings=settings))


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
    elsewhere, _ = run(tmp_path / "there")  # neither the place nor the time of judging shows
    assert outputs(out) == outputs(elsewhere)
    assert {s.model for s in read_table(out / "samples.parquet", Sample)} == {"sft"}
    assert {s.seconds for s in read_table(out / "scores.parquet", Score)} == {0.0}


def test_a_benchmark_that_is_missing_stops_the_stage_before_anything_is_generated(engine, tmp_path):
    settings = EvaluateSettings(protocols=(ALPHA, BenchmarkProtocol(name="gamma")))
    with pytest.raises(ValueError, match=r"'gamma'.*alpha, beta"):
        run(tmp_path, settings)
    with pytest.raises(ValueError, match=r"evaluate\.protocols is empty"):
        run(tmp_path, EvaluateSettings(protocols=()))
    assert not engine.jobs
    for wrong, says in (
        ({"benchmarks": ["gamma"]}, "no protocol is called 'gamma'"),
        ({"k": 4}, r"learning_curve\.k=4 is more than protocol 'late' asks"),  # which asks two
    ):
        with pytest.raises(ValueError, match=says):
            EvaluateSettings.model_validate(SETTINGS.model_dump() | {"learning_curve": wrong})


def test_another_judge_is_another_version_of_rl_and_evaluate_and_of_no_other(monkeypatch):
    monkeypatch.setattr(judging, "GRADER_VERSION", judging.GRADER_VERSION + 1)
    later = {module: runpy.run_module(module.__name__) for module in (train, evaluating)}
    assert later[evaluating]["evaluate"].version == evaluate.version + 1
    assert later[train]["rl"].version == train.rl.version + 1
    for name in ("sft", "base"):
        assert later[train][name].version == getattr(train, name).version


LEARNING = SETTINGS.model_copy(update={"learning_curve": LearningCurve(k=3, benchmarks=("alpha",))})


@pytest.fixture
def learner(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Knows as many of the three problems as its folder's step says; the result knows them all."""
    answer = engine.sample

    def sample(request: Request, job: GenerateJob) -> Sample:
        step = Path(job.engine.model).name.rpartition("-")[2]
        knows = int(step) if step.isdigit() else 3
        text = "right" if request.prompt < f"a{knows}" else "wrong"
        return answer(request, job).model_copy(update={"text": text})

    monkeypatch.setattr(engine, "sample", sample)
    return engine


def trained(root: Path, *steps: int) -> tuple[Artifact, Artifact]:
    """A model after four rollout steps that kept those of `steps`, and the benchmarks."""
    model, bench = artifacts(root)
    for step in steps:
        kept_model(model.folder, step).mkdir(parents=True)
        (kept_model(model.folder, step) / "chat_template.jinja").write_text("{{ messages }}")
    artifact = Artifact.of_folder(model.folder, "rl_math")
    return artifact.model_copy(update={"metrics": {"rollout_steps": 4.0}}), bench


def test_a_curve_needs_kept_models_and_without_one_the_result_is_scored(engine, tmp_path):
    inputs = trained(tmp_path)
    with pytest.raises(ValueError, match="rl_math kept no model along the way; run it with keep"):
        run(tmp_path, LEARNING, inputs)
    out, metrics = run(tmp_path, SETTINGS, inputs)
    assert metrics["answers"] == 16
    assert not (out / LEARNING_CURVE).exists()
    assert not kept_models(out)


@pytest.mark.parametrize("patience", [7, 16 + 9 + 4])  # or amid the second kept model
def test_a_killed_evaluation_goes_on_at_the_answer_where_it_was(learner, tmp_path, patience):
    """To a curve with a point and the cost of every kept model."""
    priced = LEARNING.engine_runtime.model_copy(update={"output_price": 2.0, "input_price": 0.0})
    settings = LEARNING.model_copy(update={"engine_runtime": priced})
    inputs = trained(tmp_path, 1, 2)
    learner.patience = patience
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, settings, inputs)
    learner.patience = 10**9
    out, metrics = run(tmp_path, settings, inputs)
    own, each = 3 * 4 + 2 * 2, 3 * 3
    assert learner.answered == metrics["answers"] == own + 2 * each
    undisturbed = tmp_path / "undisturbed"
    assert outputs(out) == outputs(run(undisturbed, settings, trained(undisturbed, 1, 2))[0])
    assert [(line["step"], line["metrics"]) for line in read_lines(out / LEARNING_CURVE)] == [
        (1, {"accuracy/alpha": pytest.approx(1 / 3)}),
        (2, {"accuracy/alpha": pytest.approx(2 / 3)}),
        (4, {"accuracy/alpha": 1.0}),
    ]
    assert metrics["completion_tokens"] == 5 * metrics["answers"]
    assert metrics["cost"] == pytest.approx(2e-6 * 5 * metrics["answers"])
    assert count_rows(out / "kept/step-00001/samples.parquet") == each
    assert curve_names(out) == {"accuracy/alpha"}


def test_a_benchmark_has_its_own_answers_also_where_two_share_a_source(tmp_path):
    """As LiveCodeBench v5 and v6 are windows of one source, and February is in both."""
    problems = [("a", "lcb", "2024-09-01"), ("b", "lcb", "2025-02-10"), ("c", "aime", None)]
    verdicts = {("a", 0): "AC", ("a", 1): "WA", ("b", 0): "AC", ("b", 1): "IE", ("c", 0): "WA"}
    v5 = result("v5", 2, "lcb", date_to="2025-03-01")
    v6 = result("v6", 1, "lcb", date_from="2025-02-01")
    answers = answers_of(evaluation(tmp_path, [v5, v6, result("aime", 1)], problems, verdicts))
    assert answers["v5"] == {"a": {0: True, 1: False}, "b": {0: True}}
    assert answers["v6"] == {"b": {0: True}}
    assert means_of(answers["v5"]) == {"a": 0.5, "b": 1.0}
    assert means_of(answers["aime"]) == {"c": 0.0}


def test_the_last_model_counts_with_as_many_answers_as_those_kept_along_the_way(tmp_path):
    two = {("a", 0): "AC", ("a", 1): "WA"}
    problems = [("a", "x", None)]
    evaluation(tmp_path / "kept/step-00002", [result("x", 2)], problems, two)
    four = two | {("a", 2): "AC", ("a", 3): "AC"}
    evaluation(tmp_path, [result("x", 4)], problems, four)
    assert read_learning(tmp_path) == {}  # no learning curve was asked for
    curve = StepLines(tmp_path / LEARNING_CURVE, after_step=0)
    for step in (2, 6):
        curve.write({"step": step, "metrics": {"accuracy/x": 0.5}})
    both = ((1.0, 1), (0.0, 1))  # answers with an even and with an odd index
    assert read_learning(tmp_path) == {"x": {2: both, 6: both}}


SUM = TestSuite(kind="stdin", cases=(StdinCase(input="1 2\n", output="3\n"),))
ADD = Problem(domain="code", prompt="Print the sum of two numbers.", source="lcb", tests=SUM)
OTHER = ADD.model_copy(update={"id": "other", "source": "elsewhere"})
PROGRAMS = (
    "print(sum(map(int, input().split())))",  # right by both
    "print(sum(map(int, open(0).read().split())))",  # the official runner has no descriptor 0
    "print(4)",  # wrong by both
)


def test_both_verdicts_are_in_the_result_and_only_official_benchmarks_are_judged_twice(tmp_path):
    texts = [f"<think>x</think>\n```python\n{program}\n```" for program in PROGRAMS]
    answers = [(p.id, i, text) for p in (ADD, OTHER) for i, text in enumerate(texts)]
    rows = [Sample(problem_id=p, index=i, model="m", text=text) for p, i, text in answers]
    folder_with(tmp_path, problems=[ADD, OTHER], samples=rows)
    settings = JudgeSettings(runtime=JudgeRuntime(workers=1))
    ours = judge_all(tmp_path, settings)
    published = judge_all(tmp_path, official(settings), "official_scores", {ADD.id})
    assert count_rows(tmp_path / "official_scores.parquet") == len(PROGRAMS)
    protocol = BenchmarkProtocol(name="lcb", k=3, official=True)
    samples = {(s.problem_id, s.index): s for s in rows}
    both = score_benchmark(protocol, [ADD], samples, ours, STATEMENT, official=published)
    assert (both.avg, both.official) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert both.disagreements == 1
    without = score_benchmark(protocol, [ADD], samples, ours, STATEMENT)
    assert (without.official, without.disagreements) == (None, 0)
    assert all(p.official == (p.source == "livecodebench") for p in PAPER_PROTOCOLS)


def test_a_prompt_that_two_sources_share_counts_for_both_and_not_where_their_golds_differ(
    engine, tmp_path
):
    twin = A[0].model_copy(update={"source": "gamma"})
    settings = SETTINGS.model_copy(update={"protocols": (ALPHA, BenchmarkProtocol(name="gamma"))})
    model, _ = artifacts(tmp_path)
    bench = folder_with(tmp_path / "twins", kept=[*A, twin])
    out, _ = run(tmp_path, settings, (model, bench))
    answers = answers_of(out)
    assert answers["gamma"].keys() == {twin.id}
    assert answers["alpha"].keys() == {p.id for p in A}
    other = folder_with(tmp_path / "other", kept=[*A, twin.model_copy(update={"answer": "2"})])
    with pytest.raises(ValueError, match=r"'alpha' and 'gamma' have another gold .*apart"):
        run(tmp_path / "again", settings, (model, other))


def test_a_judge_that_fails_by_itself_gives_no_result_and_keeps_what_it_judged_before(
    tmp_path, monkeypatch
):
    failing = ["", f"{MACHINE_FAILED}NoVerdict: the worker died", "", "", ""]
    samples = [Sample(problem_id=p.id, index=0, model="m", text="1") for p in [*A, *B][:5]]
    write_table(tmp_path / "samples.parquet", Sample, samples)
    write_table(tmp_path / "problems.parquet", Problem, [*A, *B])
    reasons = iter(failing)

    def judged(*_):
        for sample, reason in zip(samples, reasons, strict=False):
            yield scored(sample.problem_id, None if reason else True, reason=reason)

    monkeypatch.setattr(judging_stage, "score_samples", judged)
    assert len(judge_all(tmp_path, JudgeSettings(sandbox="none"))) == 5  # a fifth is unscored
    failing[3] = failing[1]
    reasons = iter(failing)
    journal = tmp_path / SCRATCH / "scores.jsonl"
    journal.unlink()
    lost = pytest.raises(RuntimeError, match=r"2 of 5 answers .*the worker died.*run again")
    with lost:
        judge_all(tmp_path, JudgeSettings(sandbox="none"))
    assert len(journal.read_text().splitlines()) == 1
    # one that ended in between counts, too
    reasons = iter(failing)
    scores = [score.model_dump_json() + "\n" for score in judged()]
    journal.write_text("".join(scores[:4]))
    reasons = iter([""])
    with lost:
        judge_all(tmp_path, JudgeSettings(sandbox="none"))
