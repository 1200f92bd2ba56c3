"""Report: one page about a run, as Markdown with plots beside it and as one HTML file."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...configs.metrics import metric_of
from ...configs.settings.evaluation import PAPER_PROTOCOLS, BenchmarkProtocol, ReportSettings
from ...eval.benchmarks.benchmarks import BenchmarkResult, Statement
from ...eval.benchmarks.grades import GRADED, Agreement, Grade, Graded, compare, read_graded
from ...eval.benchmarks.metrics import upper_bound_of_zero
from ...eval.records import Problem, Sample, Score
from ...eval.records.tables import column, count_rows, read_table
from ...training.launch.result_files import ALARM, METRICS, NO_LESSON, SCRATCH
from ...training.rl.off_policy_counts import by_entropy, read_off_policy, summed
from ..engine.stage import Metrics, stage
from ..store.store import Artifact
from .figures import title_of
from .page import TEMPLATES, Figure, Page, render
from .plots import Series, curve_plot
from .results import Evaluation, Outputs, change_of, curves_of
from .run_story import STORY, RunStory, read_story

SUBTITLE = "After Klear-Reasoner (arXiv 2508.07629): long SFT, then GPPO on math and on code"
PANELS = tomllib.loads((TEMPLATES / "panels.toml").read_text())["group"]
TRAINED: Mapping[str, str] = {k: v for group in PANELS for k, v in group["stages"].items()}
SCORES = "scores.md"
Curves = Mapping[str, Mapping[str, Mapping[int, float]]]  # stage → metric → step → value
ROLLOUTS_OPEN = 3
# Stages whose answers one judge stage scored: (answers, verdicts, where the problems are).
JUDGED = (
    ("distill", "judge", "decontaminate"),
    ("rate", "judge_rate", "decontaminate"),
    ("sample", "judge_rl", "filter_tests"),
    ("agreement", "judge_agreement", "benchmarks"),
)
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|\b(?=\w*\d)[0-9a-f]{8,}\b|\b\d+(?:\.\d+)?\b(?![\w-])")


@stage(version=2, group="evaluation")
def report(out: Path, *inputs: Artifact, settings: ReportSettings) -> Metrics:
    """Write report.md, report.html, plots/ and scores.md (scores alone) of the given stages."""
    page = report_page(inputs, settings.profile, read_story(out / SCRATCH / STORY))
    page.write(out)
    evaluations = Outputs(inputs).evaluations()
    (out / SCORES).write_text(scores_table(evaluations))
    scores = evaluations[-1].results if evaluations else ()
    return {
        "stages": len(inputs),
        "plots": len(page.figures),
        **{f"{r.name}/avg": r.avg for r in scores if r.avg is not None},
    }


def report_page(inputs: Sequence[Artifact], profile: str, story: RunStory | None = None) -> Page:
    """All the run has to say; absent stages have no section. `story`: what it planned and did."""
    outputs = Outputs(inputs)
    evaluated = [e for e in outputs.evaluations() if e.results]
    trained = {n: curves_of(path) for n in TRAINED if (path := outputs.file(n, METRICS))}
    curves = {group["title"]: _curves(trained, **group) for group in PANELS}
    models = [a for a in outputs.all if a.stage in TRAINED]
    counts = {TRAINED[a.stage]: read_off_policy(a.folder) for a in models}
    label = f"{profile or 'unlabelled'} profile{', changed' if story and story.changes else ''}"
    body = render(
        "report.md",
        profile=profile,
        outputs=outputs.all,
        ranked=[
            (f"{e.checkpoint} ({label})", *row) for e in evaluated if (row := _as_in_table_1(e))
        ],
        story=story,
        summary=summary_text(story, scores_table(evaluated), story.links if story else {}),
        curves=curves,
        alarms=_alarms(trained),
        no_lesson={TRAINED[a.stage]: t for a in models if (t := _text(a.folder / NO_LESSON))},
        off_policy={
            title: by_entropy(summed(evaluated)) for title, evaluated in counts.items() if evaluated
        },
        filters=[f for a in outputs.all if (f := _filtered(a.stage, a.folder))],
        agreements=list(_agreements(outputs)),
        rollouts=(rollouts := _graded(outputs, TRAINED)),
        differing=differing(rollouts),
        answered=_graded(outputs, {e.stage: e.checkpoint for e in outputs.evaluations()[-1:]}),
        evaluations=evaluated,
        title_of=title_of,
        statement_fields=[*Statement.model_fields],
        result_fields=[*BenchmarkResult.model_fields],
    )
    figures = [f for drawn in curves.values() for f in drawn]
    return Page("Klear", SUBTITLE, label, body, figures)


def scores_table(evaluations: Sequence[Evaluation]) -> str:
    """A row a checkpoint with intervals and paired changes, and what one must know of them."""
    facts = {"title_of": title_of, "change_of": change_of, "bound": upper_bound_of_zero}
    return render("scores.md", evaluations=[e for e in evaluations if e.results], **facts)


def summary_text(story: RunStory | None, scores: str, links: Mapping[str, str] = {}) -> str:
    """What a run came to, in some 15 lines of Markdown: what changed, `scores` as `scores_table`
    wrote them, time and cost, links. Head of every page about the run."""
    return render("summary.md", story=story, scores=Markup(scores.rstrip()), links=links)


def differing(rollouts: Sequence[tuple[str, Graded]]) -> list[int]:
    """Places of the few to read first: the first of each verdict in each stage."""
    kinds = [(stage, graded.verdict) for stage, graded in rollouts]
    return sorted(map(kinds.index, set(kinds)))[:ROLLOUTS_OPEN]


def _as_in_table_1(evaluation: Evaluation) -> tuple[list, Statement] | None:
    """(result, protocol) for each column of Table 1 and how all were asked; None for an empty row.
    A score stands in a column only if it was measured on that column's problems."""

    def measured(p: BenchmarkProtocol) -> BenchmarkResult | None:
        wanted = (p.source or p.name, p.date_from, p.date_to)
        r = evaluation.result(p.name)
        return r if r and (r.source, r.date_from, r.date_to) == wanted else None

    cells = [(measured(p), p) for p in PAPER_PROTOCOLS]
    return (cells, evaluation.results[0].statement) if any(r for r, _ in cells) else None


def _graded(outputs: Outputs, stages: Mapping[str, str]) -> list[tuple[str, Graded]]:
    paths = ((called, outputs.file(name, GRADED)) for name, called in stages.items())
    return [(called, graded) for called, path in paths if path for graded in read_graded(path)]


def _curves(
    trained: Curves, stages: Mapping[str, str], panel: Sequence[Mapping[str, Any]], **_: str
) -> list[Figure]:
    """The panels that have a metric, of each stage in turn, on one scale."""
    curves = {name: trained[name] for name in stages if name in trained}
    figures = []
    for wanted in panel:
        drawn = {
            name: [Series(metric_of(n).title, [*c[n]], [*c[n].values()]) for n in names]
            for name, c in curves.items()
            if (names := [n for n in wanted["metrics"] if n in c])
        }
        values = [y for lines in drawn.values() for line in lines for y in line.y if isfinite(y)]
        scale = (min(values), max(values)) if values else None
        for name, lines in drawn.items():
            title, unit = f"{stages[name]}: {wanted['title']}", wanted.get("unit", "")
            slug = re.sub(r"[^a-z]+", "_", f"{name} {wanted['title']}".lower()).strip("_")
            alt = f"{stages[name]}: {', '.join(line.label for line in lines)} by step"
            figures.append(Figure(slug, curve_plot(title, lines, unit, scale), alt))
    return figures


def _alarms(trained: Curves) -> list[tuple[str, str, list[int]]]:
    """(stage, alarm, steps) of the alarms that rang in training."""
    return [
        (TRAINED[stage], metric_of(name).title, [*steps])
        for stage, curves in trained.items()
        for name, steps in curves.items()
        if name.startswith(ALARM)
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def reason_kind(reason: str) -> str:
    """A reject's reason without the row's own details: quoted text, hashes and numbers."""
    return " ".join(_DETAIL.sub("…", reason).split())


def _filtered(name: str, folder: Path) -> dict[str, Any] | None:
    """What one stage kept and rejected; `reasons` are (kind, rows, one of them), the most frequent
    first. With `answers` its rows are answers of a model, and those rejected problems without one.
    """
    rejected = folder / "rejected.parquet"
    kept = [path for n in ("kept", "samples") if (path := folder / f"{n}.parquet").exists()]
    if not kept or not rejected.exists():
        return None
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for reason in column(rejected, "reason"):
        kind = reason_kind(str(reason))
        counts[kind] += 1
        first.setdefault(kind, str(reason))
    return {
        "stage": name,
        "kept": count_rows(kept[0]),
        "rejected": counts.total(),
        "reasons": [(kind, rows, first[kind]) for kind, rows in counts.most_common()],
        "answers": kept[0].stem == "samples",
    }


def _agreements(outputs: Outputs) -> Iterator[tuple[str, Agreement]]:
    """Judge against published grades, for every stage whose answers carry some."""
    for answers, judge, source in JUDGED:
        grades = outputs.file(answers, "grades.parquet")
        samples = outputs.file(answers, "samples.parquet")
        scores = outputs.file(judge, "scores.parquet")
        problems = outputs.file(source, "kept.parquet")
        if grades and samples and scores:
            originals = read_table(problems, Problem) if problems else ()
            answered, judged = read_table(samples, Sample), read_table(scores, Score)
            yield answers, compare(originals, answered, judged, read_table(grades, Grade))
