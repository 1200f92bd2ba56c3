"""Report: one page about a run, as Markdown with plots beside it and as one HTML file."""

from pathlib import Path

from configs.evaluate_stage import ReportSettings
from eval.page import figures_of
from eval.page_html import to_html
from eval.page_markdown import PLOTS, to_markdown
from eval.run_facts import RunFacts, StageOutput
from tasks.stage import Metrics, stage
from tasks.store import Artifact
from tasks.story import story_of_this_run


@stage(version=1)
def report(out: Path, *inputs: Artifact, settings: ReportSettings) -> Metrics:
    """Write report.md, report.html and plots/ from whatever stages are given, found by name."""
    from eval.report import build_page  # draws with matplotlib: slow to import

    outputs = [StageOutput(a.stage, a.folder, a.metrics, a.seconds) for a in inputs]
    facts = RunFacts(outputs)
    page = build_page(facts, settings.profile, settings.rollouts_to_read, story_of_this_run())
    (out / "report.md").write_text(to_markdown(page), encoding="utf-8")
    (out / "report.html").write_text(to_html(page), encoding="utf-8")
    figures = figures_of(page.blocks)
    (out / PLOTS).mkdir(exist_ok=True)
    for figure in figures:
        (out / PLOTS / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
    return {"stages": float(len(inputs)), "plots": float(len(figures)), **_scores(facts)}


def _scores(facts: RunFacts) -> dict[str, float]:
    """The last checkpoint's scores, in [0, 1]."""
    evaluations = facts.evaluations()
    results = evaluations[-1].results if evaluations else ()
    return {f"{r.name}/avg": r.avg for r in results if r.avg is not None}
