"""Beginning and ending a run: its MLflow parent, its state on disk, and runs that were orphaned."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from prefect import get_run_logger
from prefect.runtime import deployment
from prefect.runtime import flow_run as this_flow_run

from configs.files import replace_text
from configs.machine import load_machine
from configs.settings.base import flat
from tasks.stage.child import sharing_gpus
from tasks.stage.progress import Plain, chosen_display
from tasks.stage.run import Run, active, git_commit
from tasks.store.shared import open_store
from tasks.store.store import Store
from tasks.tracking.mlflow_client import PARENT_TAG, Mlflow
from tasks.tracking.prefect_states import (
    cancellable,
    crash_task_runs,
    is_cancelling,
    mark_crashed,
    set_cancelled,
    settle_task_runs,
)
from tasks.tracking.run_tracker import Tracker

_NOT_COMPARED = ("collect", "benchmarks", "topology", "report", "stall_minutes")
CONFIG_TAG = "klear.config"


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
    orphans = _crash_orphans(store, flow_run)
    if not spec.parent:  # cells share the flow run of their ablation, whose stages are under way
        crash_task_runs(flow_run)
    tracker = Tracker(machine.mlflow_uri, f"klear-{spec.profile}")
    for orphan in orphans:
        if orphan.config != spec.config:
            tracker.put("the end of an orphaned run", orphan.kill_in_mlflow)
    state = RunState(store, spec.config)
    with store.lock(f"run-{spec.config}", wait=False) as mine:
        run = Run(
            store=store,
            seed=spec.seed,
            run_id=_begin_in_mlflow(spec, tracker, flow_run, state if mine else None),
            tracker=tracker,
            display=Plain(get_run_logger(), chosen_display.get()),
            force=spec.force,
            verify=spec.verify,
            stall_minutes=spec.stall_minutes,
            orchestrated=True,
        )
        is_watched = deployment.id or spec.parent  # by a worker, or the outer run
        try:
            with (
                active(run),
                sharing_gpus(machine.home / "gpu", machine.gpu_slots),
                nullcontext() if is_watched else cancellable(flow_run),
            ):
                yield run
        except Exception:
            tracker.finish(run.run_id, "FAILED")
            settle_task_runs(flow_run, run.ended_tasks)
            raise
        except BaseException:
            tracker.finish(run.run_id, "KILLED")
            if is_cancelling(flow_run):  # and not ended by another signal
                set_cancelled(flow_run)
            raise
        tracker.finish(run.run_id, "FINISHED")
        if mine:
            state.path.unlink(missing_ok=True)
        settle_task_runs(flow_run, run.ended_tasks)


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
        "klear.kind": spec.kind,
        "klear.profile": spec.profile,
        "klear.seed": str(spec.seed),
        CONFIG_TAG: spec.config,
        "klear.git_commit": git_commit(),
        "prefect.flow_run_id": flow_run,
        "prefect.url": str(this_flow_run.ui_url or ""),
    }
    # A finished cell has no state any more: its ablation, continued, finds it by its tags.
    same = (PARENT_TAG, CONFIG_TAG) if spec.parent else ()
    name = spec.name or this_flow_run.name or ""
    run_id = tracker.start_pipeline(name, tags, resume, same)
    # What MLflow compares runs by: every setting that may change a result.
    stages = {n: v for n, v in spec.resolved.items() if n not in _NOT_COMPARED}
    params = {n: str(v) for n, v in flat(stages).items() if "runtime." not in n}
    resolved = yaml.safe_dump(dict(spec.resolved), sort_keys=False, allow_unicode=True)
    tracker.put("parameters", lambda server: server.params(run_id, params))
    tracker.note(run_id, link_to_prefect())
    tracker.put(
        "settings", lambda server: server.log_text(run_id, resolved, "config/resolved.yaml")
    )
    if state:
        state.write(mlflow_run=run_id, flow_run=flow_run, force=forced)
    return run_id


def link_to_prefect() -> str:
    """From the run's page in MLflow to the one in Prefect, as Markdown; '' where there is none."""
    return f"[This run in Prefect]({this_flow_run.ui_url})\n\n" if this_flow_run.ui_url else ""


@dataclass(frozen=True)
class RunState:
    """Which run is unfinished for one configuration, so that the same command continues it.

    The file `<store>/.runs/<config>.json` exists from start to success; its flock is held while
    the run lives, so a free lock beside it means that the run died.
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
        replace_text(self.path, json.dumps({**self.read(), **entries}))

    def is_dead(self) -> bool:
        """Whether its run is gone; false again as soon as the same command continues it."""
        with self.store.lock(f"run-{self.config}", wait=False) as free:
            return free

    def forget(self, flow_run: str) -> None:
        """The flow run is marked as crashed; a run that continues it meanwhile has another one."""
        with self.store.lock(f"run-{self.config}", wait=False) as free:
            if free and self.read().get("flow_run", "") == flow_run:
                self.write(flow_run="")

    def kill_in_mlflow(self, server: Mlflow) -> None:
        """Unless the same command continues it by now."""
        run_id = self.read().get("mlflow_run", "")
        if run_id and self.is_dead():
            server.mark_crashed(run_id)


def _crash_orphans(store: Store, flow_run: str) -> list[RunState]:
    """Mark runs whose process is gone as crashed in Prefect; those that were not marked yet. Their
    locks are not held meanwhile: whoever continues such a run would take it for alive."""
    found = []
    for path in sorted((store.root / ".runs").glob("*.json")):
        state = RunState(store, path.stem)
        left = state.read().get("flow_run", "")
        if left and state.is_dead():
            if left != flow_run:
                mark_crashed(left)
            state.forget(left)
            found.append(state)
    return found
