"""Distill: an engine answers every problem several times (§3.1; `rate` and `sample` too).

Every answer is on disk before the next is taken, so a killed stage asks only for what is missing.
Answers that never came are named in rejected.parquet. The budget gate asks a pilot first, one
sample of a few prompts whose answers are used, and goes on when the estimate is below what needs
approval, or below what a person approved; it also stops when answers have really cost that much.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

import orjson

from ...configs.files import files_in
from ...configs.settings.data import SampleSettings
from ...configs.settings.engines import EngineSettings
from ...eval.benchmarks.grades import Grade
from ...eval.progress import report
from ...eval.records import Problem, Rejected, Sample, Trace
from ...eval.records.row_files import find_files
from ...eval.records.tables import TableWriter, read_table, write_table
from ...training.engines.generate import (
    Journal,
    SpentApproved,
    cost_of,
    generate,
    is_local,
    journal_path,
)
from ...training.engines.interface import EngineError, Request, request_seed
from ...training.engines.recorded import mapped_text, recordings
from ...training.launch.jobs import GenerateJob
from ...training.launch.result_files import KEPT, REJECTED, SAMPLES
from ..data.sources import TRACES
from ..engine.child import ChildFailed, run_child
from ..engine.stage import Metrics, stage
from ..store.store import SCRATCH, Artifact

KINDS = {"length": "truncated", "empty": "empty", "refused": "refused", "error": "errors"}
PILOT_PROMPTS = 20
LOCAL = ("vllm", "transformers")  # engines that load weights here


def requests_of(problems: Iterable[Problem], samples: int, seed: int) -> list[Request]:
    """For so many answers to each problem, in order."""
    return [
        Request(p.id, index, p.prompt, request_seed(seed, p.id, index), p.source)
        for p in problems
        for index in range(samples)
    ]


def all_answered(out: Path, requests: Sequence[Request]) -> bool:
    with Journal(journal_path(out)) as journal:
        return all(r.key in journal for r in requests)


def ask(
    out: Path, requests: Sequence[Request], settings: SampleSettings, limit: float | None = None
) -> dict[str, float]:
    """Answer what the journal in `out` lacks; returns the `tokens_per_second` of this run and what
    an endpoint sustained (`Engine.measured`).

    Raises EngineError when some could not be answered, SpentApproved when an endpoint's answers
    have cost `limit`. Finished answers are kept in every case.
    """
    engine, sampling = settings.engine, settings.sampling
    if all_answered(out, requests):
        return {}
    if not is_local(engine):
        key = api_key(engine)
        return generate(out, requests, engine, sampling, report, key=key, limit=limit)
    file = out / SCRATCH / "requests.jsonl"
    with file.open("wb") as lines:
        lines.writelines(orjson.dumps(r._asdict()) + b"\n" for r in requests)
    job = GenerateJob(out=out, engine=engine, sampling=sampling, requests=file)
    try:
        return run_child(job, out)
    except ChildFailed as error:
        name, _, message = str(error).splitlines()[-1].partition(": ")
        if name.endswith(EngineError.__name__):  # what the engine said, without its traceback
            raise EngineError(message) from error
        raise


def api_key(engine: EngineSettings) -> str | None:
    """The value of the Prefect Secret block `api_key_block`; None: the environment variable counts.
    Raises ValueError that names the block when it does not exist."""
    if engine.kind != "openai" or not engine.api_key_block:
        return None
    from ..observe.prefect import read_secret  # seconds, and most runs need no block

    return read_secret(engine.api_key_block)


class NeedsApproval(RuntimeError):
    """The stage costs more than may be spent without asking. Every answer so far is kept."""

    def __init__(self, what: str, allowed: float, wanted: float, engine: str = "engine") -> None:
        """`engine` is what the settings call the engine that costs it."""
        super().__init__(what, allowed, math.ceil(wanted), engine)

    def __str__(self) -> str:
        what, allowed, wanted, engine = self.args
        return (
            f"{what}, and {allowed:,.2f} may be spent without approval. To approve it: the same "
            f"command with --approve-cost {wanted}, or in a form's changes the line "
            f"STAGE.{engine}.runtime.approved_cost={wanted}; answers so far are kept"
        )


def within_budget(
    out: Path, requests: Sequence[Request], settings: SampleSettings,
    unpublished: Sequence[Request] | None = None,
) -> dict[str, float]:  # fmt: skip
    """`ask` them all, after a pilot if the settings ask for one; where only `unpublished` ones cost
    something, of these. Raises NeedsApproval, before or while money is spent, and ValueError
    without prices."""
    paid, name = (requests, "engine") if unpublished is None else (unpublished, "fallback")
    engine = settings.engine
    runtime = engine.runtime
    if runtime.approve_above is None or all_answered(out, requests):
        return ask(out, requests, settings)
    if engine.prices is None:
        raise ValueError(
            f"{name}.runtime.approve_above needs prices: set {name}.runtime.input_price and "
            "output_price (per million tokens)"
        )
    pilot = pilot_of(paid, PILOT_PROMPTS)
    measured = ask(out, pilot, settings)
    mean, high, description = estimate(out, pilot, len(paid), engine)
    allowed = max(runtime.approve_above, runtime.approved_cost)
    if mean > allowed:
        raise NeedsApproval(description, allowed, high, name)
    try:
        return measured | ask(out, requests, settings, allowed)
    except SpentApproved as spent:
        raise NeedsApproval(str(spent), allowed, max(high, 1.25 * spent.cost), name) from None


def pilot_of(requests: Sequence[Request], prompts: int) -> list[Request]:
    """The first sample of `prompts` problems, spread evenly."""
    firsts = [r for r in requests if r.index == 0]
    count = min(prompts, len(firsts))
    return [firsts[i * len(firsts) // count] for i in range(count)]


def estimate(
    out: Path, pilot: Sequence[Request], answers: int, engine: EngineSettings
) -> tuple[float, float, str]:
    """What `answers` answers like those of the pilot will cost, the upper end of its 95 % interval
    by the spread of the pilot, and both in words, with the date of prices from the catalogue."""
    with Journal(journal_path(out)) as journal:
        samples = list(journal.samples(r.key for r in pilot))
    prices = engine.prices
    costs = [cost_of(engine, s.prompt_tokens, s.completion_tokens) or 0.0 for s in samples] or [0.0]
    each = fmean(costs)
    spread = 1.96 * stdev(costs) / math.sqrt(len(costs)) if len(costs) > 1 else 0.0
    mean, low, high = (answers * x for x in (each, max(0.0, each - spread), each + spread))
    basis = f"by a pilot of {len(samples)}"
    if prices and prices.source:
        basis += f" and the prices of the catalogue: {prices.source}"
    cost = f"about {mean:,.2f} ({low:,.2f} to {high:,.2f}, {basis})"
    return mean, high, f"{answers:,} answers would cost {cost}"


def chosen_problems(problems: Artifact, sources: Sequence[str]) -> list[Problem]:
    """The problems of the named sources (empty: all), each id once; without their tests."""
    chosen: dict[str, Problem] = {}
    for p in read_table(problems.file(KEPT), Problem):
        if p.id not in chosen and (not sources or p.source in sources):
            chosen[p.id] = p.model_copy(update={"tests": None})
    missing = set(sources) - {p.source for p in chosen.values()}
    if missing:
        raise ValueError(
            f"sources={sorted(missing)[0]} names no problem that is left; "
            "sources must name sources of collect that the filters did not empty"
        )
    return list(chosen.values())


def write_outputs(
    out: Path, problems: Sequence[Problem], requests: Sequence[Request], engine: EngineSettings
) -> dict[str, float]:
    """Write samples, grades and rejects in the order of what was asked; returns the counts."""
    answered, ends, grades = set[tuple[str, int]](), Counter[str](), list[Grade]()
    with Journal(journal_path(out)) as journal, TableWriter(out / SAMPLES, Sample) as rows:
        for sample in journal.samples(r.key for r in requests):
            rows.write(sample)
            answered.add((sample.problem_id, sample.index))
            ends[sample.finish_reason] += 1
        counts = journal.figures(engine)
    counts |= {name: ends[reason] for reason, name in KINDS.items()}
    with_answer = {problem for problem, _ in answered}
    with TableWriter(out / REJECTED, Rejected) as rejected:
        for p in problems:
            if p.id not in with_answer:
                reason = f"the {engine.kind} engine has no answer to this prompt"
                row = p.model_dump_json(exclude={"tests"})
                rejected.write(Rejected(id=p.id, source=p.source, reason=reason, row=row))
        counts["problems_without_answer"] = rejected.rows
        for recording in recordings(engine) if engine.kind == "recorded" else ():
            if isinstance(recording, Rejected):
                rejected.write(recording)
            elif recording.grade:
                grades.append(recording.grade)
    if engine.kind == "recorded" and engine.grade_field:
        used = (g for g in grades if (g.problem_id, g.index) in answered)
        counts["grades"] = write_table(out / "grades.parquet", Grade, used)
    return counts


def recorded_files(settings: SampleSettings) -> list[Path | tuple[str, Path]]:
    """The files that `distill` reads: recorded answers, and models that are local folders."""
    engine, fallback = settings.engine, getattr(settings, "fallback", None)
    folders = [Path(e.model) for e in (engine, fallback) if e and e.kind in LOCAL and e.model]
    of_models = [file for folder in folders for file in files_in(folder)]
    recorded = [e.files for e in (engine, fallback) if e and e.kind == "recorded"]
    return [*find_files(chain.from_iterable(recorded), Path(), "engine.files"), *of_models]


def keep_published(
    out: Path, requests: Sequence[Request], traces: Path, engine: EngineSettings
) -> tuple[list[Request], list[Request]]:
    """Put published answers into the journal in the place of samples: the requests that they are
    answers to, and those of prompts that have none."""
    wanted = Counter(r.problem_id for r in requests)
    published = Counter[str]()
    with Journal(journal_path(out)) as journal:
        for trace in read_table(traces, Trace):
            index = published[trace.problem_id]
            if index < wanted[trace.problem_id]:
                text, finish = mapped_text(trace.text, engine)
                who = {"problem_id": trace.problem_id, "index": index, "model": trace.model}
                journal.append(Sample(**who, text=text, finish_reason=finish))
                published[trace.problem_id] += 1
    answered = [r for r in requests if r.index < published[r.problem_id]]
    return answered, [r for r in requests if not published[r.problem_id]]


@stage(version=1, group="data", reads=recorded_files)
def distill(
    out: Path, problems: Artifact, *collected: Artifact, settings: SampleSettings, seed: int
) -> Metrics:
    """Up to 16 answers a prompt (§3.1: R1-0528 teaches; §3.2.1: R1-0120 curates).

    With an engine that is `from: catalogue`, the published ones of `collected`; the `fallback`
    answers prompts without one.
    """
    chosen, engine = chosen_problems(problems, settings.sources), settings.engine
    requests, counts = requests_of(chosen, settings.samples_per_prompt, seed), dict[str, float]()
    unpublished: list[Request] | None = None
    if collected:
        traces = collected[0].file(TRACES)
        requests, without = keep_published(out, requests, traces, engine)
        counts["published"] = len(requests)
        counts["prompts_without_trace"] = len({r.problem_id for r in without})
        if settings.fallback:
            engine, requests, unpublished = settings.fallback, [*requests, *without], without
    asking = settings.model_copy(update={"engine": engine})
    speed = within_budget(out, requests, asking, unpublished)
    counts |= write_outputs(out, chosen, requests, engine)
    return {"tokens_per_second": 0.0} | counts | speed
