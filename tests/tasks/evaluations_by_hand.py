"""Evaluations with a scripted engine in place of the child process, and a judge that reads."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from configs.settings.engines import Sampling
from configs.settings.evaluation import BenchmarkProtocol, EvaluateSettings
from eval.records import Problem, Sample, Score
from eval.tables import write_table
from tasks.answers import distill
from tasks.models import evaluate as evaluating
from tasks.store.store import Artifact
from training.engines.generate import Journal, journal_path
from training.engines.interface import Request
from training.launch.jobs import GenerateJob

A = [Problem(domain="math", prompt=f"a{i}", answer="1", source="alpha") for i in range(3)]
B = [Problem(domain="math", prompt=f"b{i}", answer="1", source="beta", date=f"2025-0{i + 1}-01")
     for i in range(3)]  # fmt: skip
ALPHA = BenchmarkProtocol(name="alpha", k=4)
BETA_LATE = BenchmarkProtocol(name="late", source="beta", k=2, date_from="2025-02-01")
SETTINGS = EvaluateSettings(
    protocols=(ALPHA, BETA_LATE), engine="transformers", yarn_factor=2.5,
    sampling=Sampling(max_tokens=8),
)  # fmt: skip


class Engine:
    """Stands in for the child: answers at most `patience` requests, then fails."""

    def __init__(self, patience: int = 10**9) -> None:
        self.patience = patience
        self.jobs: list[GenerateJob] = []
        self.answered = 0

    def __call__(self, job: GenerateJob, out: Path) -> None:
        self.jobs.append(job)
        with Journal(journal_path(out)) as journal:
            for line in reversed(job.requests.read_text().splitlines()):  # any order will do
                request = Request.model_validate_json(line)
                if (request.problem_id, request.index) in journal:
                    continue
                if self.answered == self.patience:
                    raise RuntimeError("killed")
                self.answered += 1
                journal.append(self.sample(request, job))

    def sample(self, request: Request, job: GenerateJob) -> Sample:
        right = request.prompt.startswith("a") and request.index < 2
        return Sample(
            problem_id=request.problem_id, index=request.index, model=job.engine.model,
            text="right" if right else "wrong", completion_tokens=5,
            finish_reason="length" if request.prompt == "b1" else "stop",
        )  # fmt: skip


class FakeJudge:
    """Right says the text; `lost` texts are unscored; counts what it was asked."""

    asked = 0

    def __init__(self, settings: object) -> None: ...

    def __enter__(self) -> "FakeJudge":
        return self

    def __exit__(self, *_: object) -> None: ...

    def judge_many(self, items: Iterable[tuple[Problem, str, int]]) -> Iterator[Score]:
        for problem, text, index in items:
            FakeJudge.asked += 1
            ok = text == "right"
            yield Score(problem_id=problem.id, index=index, reward=float(ok), correct=ok,
                        pass_rate=float(ok), verdict="AC" if ok else "WA", seconds=0.7)  # fmt: skip


def scripted(monkeypatch) -> Engine:
    """The engine that now answers, and the judge that now reads."""
    engine = Engine()
    FakeJudge.asked = 0
    monkeypatch.setattr(distill, "run_child", engine)
    monkeypatch.setattr(evaluating, "Judge", FakeJudge)
    return engine


def artifacts(root: Path) -> tuple[Artifact, Artifact]:
    model, bench = root / "model", root / "bench"
    (model / "checkpoint").mkdir(parents=True, exist_ok=True)
    (model / "checkpoint" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    bench.mkdir(exist_ok=True)
    write_table(bench / "kept.parquet", Problem, [*A, *B])
    return Artifact.of_folder(model, "sft"), Artifact.of_folder(bench, "benchmarks")
