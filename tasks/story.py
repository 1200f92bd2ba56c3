"""A run's own story: the plan it began with and what became of every stage.

The first plan of a run is kept beside its ledger, so that a retry is measured by it too. Nothing
of this is in any stage's key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prefect.runtime import flow_run as this_flow_run

from eval.run_facts import COST_METRICS, TOKEN_METRICS, first
from eval.run_story import Expected, Happened, RunStory
from tasks.store import Artifact, Manifest

if TYPE_CHECKING:
    from tasks.run import Run

FIGURES = ("seconds", "bytes", "tokens", "cost", "basis")


@dataclass
class Story:
    """Filled while the run goes on."""

    started: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    planned: tuple[Expected, ...] = ()
    happened: dict[str, Happened] = field(default_factory=dict)

    def note(self, run: Run, artifact: Artifact, manifest: Manifest, action: str, why: str) -> None:
        """What became of a stage; a stage that an earlier attempt of this run made is its own."""
        if action == "reused" and manifest.pipeline_run == run.run_id:
            action, why = "computed", "before this run was resumed"
        self.happened[artifact.stage] = Happened(
            stage=artifact.stage,
            key=artifact.key,
            action=action,
            why=why,
            seconds=artifact.seconds,
            bytes=sum(f.bytes for f in manifest.files.values()),
            tokens=first(artifact.metrics, TOKEN_METRICS),
            cost=first(artifact.metrics, COST_METRICS),
            commit=manifest.git_commit,
            url=run.tracker.run_url(artifact.mlflow_run),
        )


def story_of_this_run() -> RunStory | None:
    """What the current run planned and did up to here; None outside of a run."""
    from tasks.run import current_run  # a run holds its story

    try:
        run = current_run()
    except RuntimeError:
        return None
    flow = str(this_flow_run.name or "")
    return RunStory(
        name=flow or run.tracker.name,
        started=run.story.started,
        commit=next((h.commit for h in run.story.happened.values() if h.action != "reused"), ""),
        links={
            "Prefect": str(this_flow_run.ui_url or ""),
            "MLflow": run.tracker.run_url(run.run_id),
        },
        planned=run.story.planned,
        happened=tuple(run.story.happened.values()),
    )


def head_of(run: Run) -> str:
    """What this run did, in one Markdown paragraph: its report may be an earlier run's, reused."""
    from eval.report_run import summary

    happened = tuple(run.story.happened.values())
    if not happened:
        return ""
    story = RunStory(planned=run.story.planned, happened=happened)
    return f"**This run.** {summary(story)}\n\n"


def expect(run: Run, stages: Iterable[Any]) -> None:
    """Begin a run's story with its plan (of `PlannedStage`s), or with the first one it had."""
    plan = tuple(
        Expected(stage=s.stage, action=s.action, why=s.why,
                 **{name: getattr(s, name) for name in FIGURES if hasattr(s, name)})
        for s in stages
    )  # fmt: skip
    kept = run.store.root / ".runs" / "plans" / f"{run.run_id}.json"
    try:
        run.story.planned = tuple(Expected.model_validate(e) for e in json.loads(kept.read_text()))
    except (OSError, ValueError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps([e.model_dump() for e in plan]))
        os.replace(part, kept)
        run.story.planned = plan
