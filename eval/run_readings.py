"""Rows worth reading with one's own eyes: overlaps, rollouts and answers, chosen without chance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from eval.graded import FILE as GRADED
from eval.graded import Check, Graded, read_graded
from eval.records import Score
from eval.run_facts import RunFacts
from eval.tables import column, read_table

TEXT_CHARS = 6_000
REASON_CHARS = 120
RL_STAGES = ("rl_math", "rl_code")
ROLLOUT_FACTS = ("step", "verdict", "reward", "advantage")


@dataclass(frozen=True)
class Overlap:
    """A training prompt and a benchmark item that share an n-gram."""

    benchmark: str
    ngram: str
    coverage: float
    row: str
    item: str


@dataclass(frozen=True)
class OverlapCounts:
    """Rows with any shared n-gram, and how many of them share at least half of an item."""

    any_ngram: int
    by_coverage: tuple[tuple[float, int], ...]
    """(coverage, rows that share at least so much of one item)."""
    examples: tuple[Overlap, ...]


@dataclass(frozen=True)
class Reading:
    """One answer with what is needed to judge the judge."""

    title: str
    question: str
    answer: str
    checks: tuple[Check, ...] = ()
    checks_in_all: int = 0


def overlaps(facts: RunFacts, levels: Sequence[float] = (0.25, 0.5, 0.8)) -> OverlapCounts | None:
    """Counts under the strict and the covering rule, with the widest, middle and narrowest hit."""
    path = facts.path("decontaminate", "hits.parquet")
    if not path:
        return None
    best: dict[str, tuple[float, int]] = {}
    pairs = zip(column(path, "row_id"), column(path, "coverage"), strict=True)
    for number, (row, coverage) in enumerate(pairs):
        if str(row) not in best or float(str(coverage)) > best[str(row)][0]:
            best[str(row)] = (float(str(coverage)), number)
    ranked = sorted(best.values(), key=lambda item: (-item[0], item[1]))
    numbers = dict.fromkeys(ranked[i][1] for i in _spread(len(ranked), 3))
    return OverlapCounts(
        any_ngram=len(best),
        by_coverage=tuple((level, sum(c >= level for c, _ in ranked)) for level in levels),
        examples=tuple(
            Overlap(*(row[n] for n in ("benchmark", "ngram", "coverage", "row", "item")))
            for row in rows_at(path, list(numbers))
        ),
    )


def rollouts(facts: RunFacts, count: int) -> list[Reading]:
    """Rollouts of every RL stage, half from its first step and half from its last."""
    prompts = _prompts(facts.path("filter_rl", "kept.parquet"))
    found = []
    for stage in RL_STAGES:
        path = facts.path(stage, "rollouts.parquet")
        if not path or not {"text", "problem_id"} <= set(pq.read_schema(path).names):
            continue
        steps = [int(str(s)) for s in column(path, "step")] if _has(path, "step") else []
        rewards = list(column(path, "reward")) if _has(path, "reward") else []
        graded = _graded(facts, stage)
        for row in rows_at(path, first_and_last(steps, rewards, count)):
            known = [n for n in ROLLOUT_FACTS if row.get(n) is not None]
            question = str(row.get("prompt") or prompts.get(row["problem_id"], row["problem_id"]))
            title = f"{stage}: {', '.join(f'{n} {_number(row[n])}' for n in known)}"
            known_checks = graded.get((row.get("step"), row["problem_id"], row.get("index")))
            found.append(_reading(title, question, row["text"], known_checks))
    return found


def answers(facts: RunFacts, count: int) -> list[Reading]:
    """Answers of the last checkpoint to the benchmarks, right and wrong ones in turn."""
    evaluations = facts.evaluations()
    if not evaluations:
        return []
    stage, checkpoint = evaluations[-1].stage, evaluations[-1].checkpoint
    scores_at, samples_at = (
        facts.path(stage, "scores.parquet"),
        facts.path(stage, "samples.parquet"),
    )
    if not scores_at or not samples_at:
        return []
    scores = {(s.problem_id, s.index): s for s in _first_samples(scores_at)}
    chosen = right_and_wrong(list(scores.values()), count)
    keys = list(zip(column(samples_at, "problem_id"), column(samples_at, "index"), strict=True))
    wanted = {(s.problem_id, s.index) for s in chosen}
    numbers = [i for i, key in enumerate(keys) if key in wanted]
    prompts = _prompts(facts.path(stage, "problems.parquet"))
    texts = {(r["problem_id"], r["index"]): r for r in rows_at(samples_at, numbers)}
    graded = _graded(facts, stage)
    return [
        _reading(
            f"{checkpoint}: {score.verdict}, reward {_number(score.reward)}"
            + (f", {score.reason[:REASON_CHARS]}" if score.reason else ""),
            prompts.get(score.problem_id, score.problem_id),
            texts[score.problem_id, score.index]["text"],
            graded.get((None, score.problem_id, score.index)),
        )
        for score in chosen
        if (score.problem_id, score.index) in texts
    ]


def _graded(facts: RunFacts, stage: str) -> dict[tuple[object, ...], Graded]:
    path = facts.path(stage, GRADED)
    return {(g.step, g.problem_id, g.index): g for g in read_graded(path)} if path else {}


def _reading(title: str, question: str, answer: str, graded: Graded | None) -> Reading:
    checks = graded.checks if graded and graded.checks_in_all > 1 else ()
    in_all = graded.checks_in_all if graded else 0
    return Reading(title, _cut(question), _cut(answer), checks, in_all)


def _first_samples(path: Path) -> Iterable[Score]:
    return (s for s in read_table(path, Score) if s.index == 0)


def right_and_wrong(scores: list[Score], count: int) -> list[Score]:
    right = [s for s in scores if s.correct]
    wrong = [s for s in scores if s.correct is False]
    half = min(len(right), max(count // 2, count - len(wrong)))
    picked = [right[i] for i in _spread(len(right), half)]
    return picked + [wrong[i] for i in _spread(len(wrong), count - len(picked))]


def first_and_last(steps: list[int], rewards: list[object], count: int) -> list[int]:
    """Row numbers: of the first and of the last step, the lowest and the highest rewards."""
    if not steps:
        return list(range(count))
    chosen: list[int] = []
    for step, share in ((min(steps), count // 2), (max(steps), count - count // 2)):
        rows = [i for i, s in enumerate(steps) if s == step and i not in chosen]
        if rewards:
            rows.sort(key=lambda i: (float(str(rewards[i] or 0.0)), i))
        chosen += [rows[i] for i in _spread(len(rows), share)]
    return chosen


def _spread(size: int, count: int) -> list[int]:
    """`count` indices of a list of `size`, evenly from the first to the last."""
    if count <= 0 or size <= 0:
        return []
    if count == 1:
        return [0]
    return sorted({round(i * (size - 1) / (count - 1)) for i in range(count)})


def rows_at(path: Path, numbers: list[int]) -> list[dict]:
    """The rows at `numbers`, in that order; reads one batch at a time."""
    found, start = {}, 0
    wanted = set(numbers)
    file = pq.ParquetFile(path)
    for batch in file.iter_batches(batch_size=256):
        for i in range(batch.num_rows):
            if start + i in wanted:
                found[start + i] = batch.slice(i, 1).to_pylist()[0]
        start += batch.num_rows
    file.close()
    return [found[n] for n in numbers if n in found]


def _prompts(path: Path | None) -> dict[str, str]:
    """Prompts by problem id, without the tests, which may be gigabytes."""
    if path is None:
        return {}
    ids, prompts = column(path, "id"), column(path, "prompt")
    return {str(i): str(prompt) for i, prompt in zip(ids, prompts, strict=True)}


def _has(path: Path, name: str) -> bool:
    return name in pq.read_schema(path).names


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    """A long text without its middle: how it begins and how it ends is what one reads."""
    if len(text) <= TEXT_CHARS:
        return text
    half, left_out = TEXT_CHARS // 2, len(text) - TEXT_CHARS
    return f"{text[:half]}\n\n[… {left_out:,} characters left out …]\n\n{text[-half:]}"
