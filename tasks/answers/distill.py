"""Distill: an engine answers every problem several times (§3.1; `rate` and `sample` too).

Each finished answer is on disk before the next is taken, so a killed stage asks only for what is
missing. Answers that never came are named in rejected.parquet, not forgotten.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineSettings
from eval.judge.grades import Grade
from eval.records import Problem, Rejected, Sample
from eval.tables import TableWriter, read_table, write_table
from tasks.answers.asking import Plan, within_budget
from tasks.data.sources import recorded_files
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact
from training.engines.journal import Journal, journal_path
from training.engines.without_model import recordings

KINDS = {"length": "truncated", "empty": "empty", "refused": "refused", "error": "errors"}


def chosen_problems(problems: Artifact, sources: Sequence[str]) -> list[Problem]:
    """The problems of the named sources (empty: all), each id once; without their tests."""
    chosen: dict[str, Problem] = {}
    for p in read_table(problems.file("kept.parquet"), Problem):
        if p.id not in chosen and (not sources or p.source in sources):
            chosen[p.id] = p.model_copy(update={"tests": None})
    missing = set(sources) - {p.source for p in chosen.values()}
    if missing:
        raise ValueError(
            f"sources={sorted(missing)[0]} names no problem that is left; "
            "sources must name sources of collect that the filters did not empty"
        )
    return list(chosen.values())


def write_outputs(out: Path, plan: Plan, engine: EngineSettings) -> dict[str, float]:
    """Write samples, grades and rejects in the order of `plan`; returns the counts."""
    answered, ends = set[tuple[str, int]](), Counter[str]()
    with (
        Journal(journal_path(out)) as journal,
        TableWriter(out / "samples.parquet", Sample) as rows,
    ):
        for sample in journal.samples(r.key for r in plan):
            rows.write(sample)
            answered.add((sample.problem_id, sample.index))
            ends[sample.finish_reason] += 1
        found = journal.figures(engine.runtime)
    found |= {name: float(ends[reason]) for reason, name in KINDS.items()}
    with_answer, grades = {problem for problem, _ in answered}, list[Grade]()
    with TableWriter(out / "rejected.parquet", Rejected) as rejected:
        for p in plan.problems:
            if p.id not in with_answer:
                reason = f"the {engine.kind} engine has no answer to this prompt"
                row = p.model_dump_json(exclude={"tests"})
                rejected.write(Rejected(id=p.id, source=p.source, reason=reason, row=row))
        found["problems_without_answer"] = float(rejected.rows)
        for recording in recordings(engine) if engine.kind == "recorded" else ():
            if isinstance(recording, Rejected):
                rejected.write(recording)
            elif recording.grade:
                grades.append(recording.grade)
    if engine.kind == "recorded" and engine.grade_field:
        asked = (g for g in grades if (g.problem_id, g.index) in answered)
        found["grades"] = float(write_table(out / "grades.parquet", Grade, asked))
    return found


@stage(version=1, reads=recorded_files)
def distill(out: Path, problems: Artifact, *, settings: SampleSettings, seed: int) -> Metrics:
    """Up to 16 answers a prompt (§3.1: R1-0528 teaches; §3.2.1: R1-0120 curates)."""
    chosen = chosen_problems(problems, settings.sources)
    plan = Plan(chosen, range(settings.samples_per_prompt), seed)
    speed = within_budget(out, plan, settings)
    return {**write_outputs(out, plan, settings.engine), "tokens_per_second": speed}
