"""Report: one page about a run, as Markdown with plots beside it and as one HTML file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from configs.settings.evaluation import ReportSettings
from tasks.report.page import Page, link, render
from tasks.report.results import Outputs
from tasks.report.run_story import (
    COST_METRICS,
    TOKEN_METRICS,
    RunStory,
    StageOutcome,
    duration,
    first,
    summary,
)
from tasks.stage.run import story_of_this_run
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact

SUBTITLE = (
    "From a base model to a reasoning model, after Klear-Reasoner (arXiv 2508.07629): long "
    "chain-of-thought SFT, then GPPO on math and on code."
)


@stage(version=1)
def report(out: Path, *inputs: Artifact, settings: ReportSettings) -> Metrics:
    """Write report.md, report.html and plots/ from whatever stages are given, found by name."""
    page = report_page(inputs, settings.profile, story_of_this_run())
    page.write(out)
    evaluations = Outputs(inputs).evaluations()
    scores = evaluations[-1].results if evaluations else ()
    return {
        "stages": float(len(inputs)),
        "plots": float(len(page.figures)),
        **{f"{r.name}/avg": r.avg for r in scores if r.avg is not None},
    }


def report_page(inputs: Sequence[Artifact], profile: str, story: RunStory | None = None) -> Page:
    """Everything the run has to say; absent stages leave their sections out.

    `story` is what the run planned and did, where one is known.
    """
    from tasks.report.data import data_facts  # these draw with matplotlib: slow to import
    from tasks.report.grading import readings
    from tasks.report.scores import leaderboard, score_facts
    from tasks.report.training import training_facts

    outputs = Outputs(inputs)
    scores, score_figures = score_facts(outputs)
    stages, curves = training_facts(outputs)
    data, funnel = data_facts(outputs)
    rollouts, answers = readings(outputs)
    label = f"{profile or 'unlabelled'} profile"
    ours = [(f"{e.checkpoint} ({label})", e) for e in outputs.evaluations()]
    body = render(
        "report.md",
        profile=profile,
        outputs=outputs.all,
        leaderboard=leaderboard(ours, "marked with a profile"),
        story=story,
        summary=summary(story) if story and story.happened else "",
        run_rows=list(_run_rows(outputs, story or RunStory())),
        stages=stages,
        rollouts=rollouts,
        answered=answers,
        **scores,
        **data,
    )
    return Page("Klear", SUBTITLE, label, body, [*score_figures, *curves, *funnel])


def _run_rows(outputs: Outputs, story: RunStory) -> Iterator[Sequence[object]]:
    """What became of every stage, what it took and what the plan had said; the sum of the time."""
    by_stage = {h.stage: h for h in story.happened}
    for a in outputs.all:
        tokens, cost = first(a.metrics, TOKEN_METRICS), first(a.metrics, COST_METRICS)
        h = by_stage.get(a.stage) or StageOutcome(
            stage=a.stage, key=a.key, action="–", seconds=a.seconds, tokens=tokens, cost=cost
        )
        yield link(a.stage, h.url), *h.told(story.expected(a.stage))
    yield "all stages", "", duration(sum(a.seconds for a in outputs.all)), "", "", ""
