"""Distill: an engine answers every problem several times (§3.1; `rate` and `sample` too).

Each finished answer is on disk before the next is taken, so a killed stage asks only for what is
missing. Answers that never came are named in rejected.parquet, not forgotten.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineSettings
from eval.judge.grades import Grade
from eval.records import Problem, Rejected, Sample
from eval.tables import TableWriter, read_table, write_table
from tasks.answers.asking import Plan, ask
from tasks.answers.budget import within_budget
from tasks.answers.early_stop import ask_in_rounds
from tasks.data.sources import recorded_files
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact
from training.engines.figures import cost_of
from training.engines.interface import Key
from training.engines.journal import Journal, journal_path
from training.engines.without_model import recorded_grades, recordings

KINDS = {"length": "truncated", "empty": "empty", "refused": "refused", "error": "errors"}


def chosen_problems(problems: Artifact, sources: Sequence[str]) -> list[Problem]:
    """The problems of the named sources (empty: all), each id once; without their tests."""
    rows = read_table(problems.file("kept.parquet"), Problem)
    chosen: dict[str, Problem] = {}
    for p in rows:
        if p.id not in chosen and (not sources or p.source in sources):
            chosen[p.id] = p.model_copy(update={"tests": None})
    missing = set(sources) - {p.source for p in chosen.values()}
    if missing:
        raise ValueError(
            f"sources={sorted(missing)[0]} names no problem that is left; "
            "sources must name sources of collect that the filters did not empty"
        )
    return list(chosen.values())


class Counts:
    """What the answers of a stage were and cost, in all and by source."""

    def __init__(self, problems: Iterable[Problem], engine: EngineSettings) -> None:
        self._source = {p.id: p.source for p in problems}
        self._runtime = engine.runtime
        self.totals: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._prompt_tokens: Counter[str] = Counter()

    def add(self, sample: Sample) -> None:
        source = self._source[sample.problem_id]
        self.totals["samples"] += 1
        self._tokens[source] += sample.completion_tokens
        self._prompt_tokens[source] += sample.prompt_tokens
        if sample.finish_reason in KINDS:
            self.totals[KINDS[sample.finish_reason]] += 1

    def metrics(self) -> dict[str, float]:
        """Counts in the order in which people look at them; cost where there are prices."""
        found = {n: float(self.totals[n]) for n in ("samples", *KINDS.values())}
        found["tokens"] = float(self._tokens.total())
        found["prompt_tokens"] = float(self._prompt_tokens.total())
        cost = cost_of(self._runtime, self._prompt_tokens.total(), self._tokens.total())
        if cost is not None:
            found["cost"] = cost
        for source in sorted(self._tokens):
            found[f"tokens/{source}"] = float(self._tokens[source])
            if cost is not None:
                spent = cost_of(self._runtime, self._prompt_tokens[source], self._tokens[source])
                found[f"cost/{source}"] = spent or 0.0
        return found


def write_outputs(
    out: Path, problems: Sequence[Problem], keys: Iterable[Key], engine: EngineSettings
) -> dict[str, float]:
    """Write samples, grades and rejects in the order of `keys`; returns the counts."""
    counts, answered = Counts(problems, engine), set[Key]()
    with (
        Journal(journal_path(out)) as journal,
        TableWriter(out / "samples.parquet", Sample) as rows,
    ):
        for sample in journal.samples(keys):
            rows.write(sample)
            answered.add((sample.problem_id, sample.index))
            counts.add(sample)
    found = counts.metrics()
    with_answer = {problem for problem, _ in answered}
    without = [p for p in problems if p.id not in with_answer]
    found["problems_without_answer"] = float(len(without))
    with TableWriter(out / "rejected.parquet", Rejected) as rejected:
        for p in without:
            rejected.write(_unanswered(p, engine))
        if engine.kind == "recorded":
            for recording in recordings(engine):
                if isinstance(recording, Rejected):
                    rejected.write(recording)
    if engine.kind == "recorded" and engine.grade_field:
        found["grades"] = write_table(
            out / "grades.parquet", Grade, recorded_grades(engine, answered)
        )
    return found


def _unanswered(problem: Problem, engine: EngineSettings) -> Rejected:
    reason = f"the {engine.kind} engine has no answer to this prompt"
    row = problem.model_dump_json(exclude={"tests"})
    return Rejected(id=problem.id, source=problem.source, reason=reason, row=row)


@stage(version=1, reads=recorded_files)
def distill(out: Path, problems: Artifact, *, settings: SampleSettings, seed: int) -> Metrics:
    """Up to 16 answers a prompt (§3.1: R1-0528 teaches; §3.2.1: R1-0120 curates)."""
    chosen = chosen_problems(problems, settings.sources)
    plan = Plan(chosen, range(settings.samples_per_prompt), seed)
    stopped = 0

    def ask_some(some: Plan, limit: float | None) -> float:
        return ask(out, some, settings, seed, limit)

    def ask_everything(limit: float | None) -> float:
        nonlocal stopped
        if settings.early_stop is None:
            return ask_some(plan, limit)
        speed, stopped = ask_in_rounds(
            out, plan, problems.file("kept.parquet"), settings.early_stop,
            lambda some: ask_some(some, limit),
        )  # fmt: skip
        return speed

    speed = within_budget(out, plan, settings, ask_some, ask_everything)
    counts = write_outputs(out, chosen, plan.sample_keys(), settings.engine)
    if settings.early_stop:
        counts["stopped_early"] = float(stopped)
    return {**counts, "tokens_per_second": speed}
