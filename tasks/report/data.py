"""What the data stages kept and rejected, what overlaps with benchmarks, what the judge said."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eval.judge.grades import Agreement, Grade, compare
from eval.records import Problem, Sample, Score
from eval.tables import column, count_rows, read_table
from tasks.report.page import Figure
from tasks.report.plots import funnel_plot
from tasks.report.results import Outputs, rows_at, spread

# Stages whose answers one judge stage scored: (answers, verdicts, where the problems are).
JUDGED = (
    ("distill", "judge", "decontaminate"),
    ("rate", "judge_rate", "decontaminate"),
    ("sample", "judge_rl", "filter_tests"),
)
REASONS_WITH_EXAMPLE = 6
LONGEST = 280
COVERAGES = (0.25, 0.5, 0.8)
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|\b(?=\w*\d)[0-9a-f]{8,}\b|\b\d+(?:\.\d+)?\b(?![\w-])")


class Filtered(NamedTuple):
    """What one stage kept and rejected."""

    stage: str
    kept: int
    rejected: int
    reasons: list[tuple[str, int]]
    """Kinds of reasons with counts, the most frequent first."""
    examples: list[tuple[str, int, str]]
    """(reason, rows of its kind, what the row says), in the same order."""
    answers: bool
    """The rows kept are answers that a model gave, those rejected are problems without one."""


def data_facts(outputs: Outputs) -> tuple[dict[str, Any], list[Figure]]:
    """What the template asks for, and the picture of the funnel."""
    filters = [f for a in outputs.all if (f := _filtered(a.stage, a.folder))]
    bars = [(f.stage, f.kept, f.rejected) for f in filters if not f.answers]
    drawn = [Figure("funnel", funnel_plot(bars), "Rows kept and rejected by stage")] if bars else []
    facts = {
        "filters": filters,
        "funnel": drawn,
        "verdicts": list(_verdicts(outputs)),
        "overlaps": _overlaps(outputs.file("decontaminate", "hits.parquet")),
        "agreements": list(_agreements(outputs)),
    }
    return facts, drawn


def reason_kind(reason: str) -> str:
    """A reject's reason without the row's own details: quoted text, hashes and numbers."""
    return " ".join(_DETAIL.sub("…", reason).split())


def _filtered(stage: str, folder: Path) -> Filtered | None:
    kept, rejected = folder / "kept.parquet", folder / "rejected.parquet"
    samples = folder / "samples.parquet"
    answers = not kept.exists() and samples.exists() and rejected.exists()
    if not (kept.exists() or answers):
        return None
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    for number, reason in enumerate(column(rejected, "reason") if rejected.exists() else ()):
        kind = reason_kind(str(reason))
        counts[kind] += 1
        first.setdefault(kind, number)
    reasons = _ranked(counts)
    shown = reasons[:REASONS_WITH_EXAMPLE]
    rows = rows_at(rejected, [first[kind] for kind, _ in shown]) if shown else []
    examples = [
        (str(row["reason"]), count, _text(str(row.get("row", ""))))
        for (_, count), row in zip(shown, rows, strict=True)
    ]
    size = count_rows(samples if answers else kept)
    return Filtered(stage, size, counts.total(), reasons, examples, answers)


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _text(row: str) -> str:
    """What the row is about: its prompt, or the row as it is."""
    try:
        fields = json.loads(row)
    except ValueError:
        fields = None
    names = ("prompt", "problem", "question", "text")
    found = (fields.get(name) for name in names) if isinstance(fields, dict) else ()
    text = " ".join(str(next(filter(None, found), row)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _verdicts(outputs: Outputs) -> Iterator[tuple[str, int, str, int, str]]:
    """(stage, answers, share right in percent, unscored, counts by verdict)."""
    for stage, judge, _ in JUDGED:
        if path := outputs.file(judge, "scores.parquet"):
            counts = Counter(str(v) for v in column(path, "verdict"))
            scored = counts.total() - counts["IE"]
            right = sum(c is True for c in column(path, "correct"))
            share = f"{100 * right / scored:.1f} %" if scored else "–"
            told = ", ".join(f"{name} {count:,}" for name, count in _ranked(counts))
            yield stage, counts.total(), share, counts["IE"], told


def _overlaps(hits: Path | None) -> dict[str, Any] | None:
    """Rows under the strict and the covering rule; the widest, a middle and the narrowest hit."""
    if hits is None:
        return None
    best: dict[str, tuple[float, int]] = {}
    pairs = zip(column(hits, "row_id"), column(hits, "coverage"), strict=True)
    for number, (row, coverage) in enumerate(pairs):
        best[row] = max(best.get(row, (-1.0, 0)), (coverage, -number))  # the first of equal ones
    ranked = sorted(best.values(), reverse=True)
    return {
        "any": len(best),
        "levels": [(level, sum(c >= level for c, _ in ranked)) for level in COVERAGES],
        "examples": rows_at(hits, [-ranked[i][1] for i in spread(len(ranked), 3)]),
    }


def _agreements(outputs: Outputs) -> Iterator[tuple[str, Agreement]]:
    """Judge against published grades, for every stage whose answers carry some."""
    for answers, judge, asked in JUDGED:
        grades = outputs.file(answers, "grades.parquet")
        samples = outputs.file(answers, "samples.parquet")
        scores = outputs.file(judge, "scores.parquet")
        problems = outputs.file(asked, "kept.parquet")
        if grades and samples and scores:
            known = read_table(problems, Problem) if problems else ()
            told = read_table(samples, Sample), read_table(scores, Score), read_table(grades, Grade)
            yield answers, compare(known, *told)
