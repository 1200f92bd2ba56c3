"""Distill: an engine answers every problem several times (§3.1; `rate` and `sample` too).

Each finished answer is on disk before the next is taken, so a killed stage asks only for what is
missing. Answers that never came are named in rejected.parquet, not forgotten.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from configs.data_stages import SampleSettings
from configs.engines import EngineSettings
from eval.agreement import Grade
from eval.records import Problem, Rejected, Sample
from eval.tables import TableWriter, read_table, write_table
from tasks.child import run_child
from tasks.progress import report
from tasks.sources import recorded_files
from tasks.stage import Metrics, stage
from tasks.store import SCRATCH, Artifact
from training.engines.interface import Request, request_seed
from training.engines.journal import Journal, Key
from training.engines.local import journal_path
from training.engines.make import is_local, make_engine
from training.engines.recorded import recorded_grades, recordings
from training.jobs import GenerateJob

SECONDS_PER_REPORT = 0.2


def requests_for(problems: Sequence[Problem], per_prompt: int, seed: int) -> Iterator[Request]:
    """`per_prompt` requests a problem, each with a seed of its own."""
    for p in problems:
        for i in range(per_prompt):
            seed_of_sample = request_seed(seed, p.id, i)
            yield Request(problem_id=p.id, index=i, prompt=p.prompt, seed=seed_of_sample)


def chosen_problems(problems: Artifact, sources: Sequence[str]) -> list[Problem]:
    """The problems of the named sources (empty: all), each id once; without their tests."""
    rows = read_table(problems.file("kept.parquet"), Problem)
    chosen = {p.id: p for p in rows if not sources or p.source in sources}
    missing = set(sources) - {p.source for p in chosen.values()}
    if missing:
        raise ValueError(
            f"sources={sorted(missing)[0]} names no problem that is left; "
            "sources must name sources of collect that the filters did not empty"
        )
    return list(chosen.values())


def ask_in_process(out: Path, requests: Sequence[Request], settings: SampleSettings) -> None:
    """Answer what the journal lacks with a scripted, recorded or endpoint engine."""
    with Journal(journal_path(out)) as journal:
        missing = [r for r in requests if (r.problem_id, r.index) not in journal]
        if not missing:
            return
        began = last = time.monotonic()
        tokens = 0
        with make_engine(settings.engine, settings.sampling) as engine:
            for sample in engine.answer(missing):
                journal.append(sample)
                tokens += sample.completion_tokens
                now = time.monotonic()
                if now - last > SECONDS_PER_REPORT:
                    last = now
                    report(len(journal), len(requests), f"{tokens / (now - began):.0f} tok/s")


def ask_in_child(
    out: Path, requests: Sequence[Request], settings: SampleSettings, seed: int
) -> None:
    """Answer what the journal lacks with a local model, in a supervised process of its own."""
    with Journal(journal_path(out)) as journal:
        if all((r.problem_id, r.index) in journal for r in requests):
            return
    file = out / SCRATCH / "requests.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(r.model_dump_json() + "\n" for r in requests)
    job = GenerateJob(
        out=out, engine=settings.engine, sampling=settings.sampling, requests=file, seed=seed
    )
    run_child(job, out)


def write_outputs(
    out: Path, problems: Sequence[Problem], requests: Sequence[Request], engine: EngineSettings
) -> dict[str, float]:
    """Write samples, grades and rejects in the order of the requests; returns the counts."""
    names = ("samples", "truncated", "empty", "refused", "errors", "tokens")
    counts: dict[str, float] = dict.fromkeys(names, 0.0)
    prompt_tokens = 0
    answered: set[Key] = set()
    kinds = {"length": "truncated", "empty": "empty", "refused": "refused", "error": "errors"}
    with (
        Journal(journal_path(out)) as journal,
        TableWriter(out / "samples.parquet", Sample) as rows,
    ):
        for sample in journal.samples((r.problem_id, r.index) for r in requests):
            rows.write(sample)
            answered.add((sample.problem_id, sample.index))
            counts["samples"] += 1
            counts["tokens"] += sample.completion_tokens
            prompt_tokens += sample.prompt_tokens
            if sample.finish_reason in kinds:
                counts[kinds[sample.finish_reason]] += 1
    with_answer = {problem for problem, _ in answered}
    without = [p for p in problems if p.id not in with_answer]
    counts["problems_without_answer"] = len(without)
    with TableWriter(out / "rejected.parquet", Rejected) as rejected:
        for p in without:
            rejected.write(_unanswered(p, engine))
        if engine.kind == "recorded":
            for found in recordings(engine):
                if isinstance(found, Rejected):
                    rejected.write(found)
    if engine.kind == "recorded" and engine.grade_field:
        counts["grades"] = write_table(
            out / "grades.parquet", Grade, recorded_grades(engine, answered)
        )
    return counts | _cost(engine, prompt_tokens, counts["tokens"])


def _unanswered(problem: Problem, engine: EngineSettings) -> Rejected:
    reason = f"the {engine.kind} engine has no answer to this prompt"
    row = problem.model_dump_json(exclude={"tests"})
    return Rejected(id=problem.id, source=problem.source, reason=reason, row=row)


def _cost(engine: EngineSettings, prompt_tokens: float, tokens: float) -> dict[str, float]:
    """Money at the prices of the settings; absent when there are none."""
    prices = engine.runtime.input_price, engine.runtime.output_price
    if prices == (None, None):
        return {}
    return {"cost": (prompt_tokens * (prices[0] or 0) + tokens * (prices[1] or 0)) / 1e6}


@stage(version=1, reads=recorded_files)
def distill(out: Path, problems: Artifact, *, settings: SampleSettings, seed: int) -> Metrics:
    """Up to 16 answers a prompt (§3.1: R1-0528 teaches; §3.2.1: R1-0120 curates)."""
    chosen = chosen_problems(problems, settings.sources)
    requests = list(requests_for(chosen, settings.samples_per_prompt, seed))
    began = time.monotonic()
    if is_local(settings.engine):
        ask_in_child(out, requests, settings, seed)
    else:
        ask_in_process(out, requests, settings)
    seconds = time.monotonic() - began
    counts = write_outputs(out, chosen, requests, settings.engine)
    return {**counts, "tokens_per_second": counts["tokens"] / max(seconds, 1e-9)}
