"""A tracked run: how it begins and ends, who observes it, how one that died is continued."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import yaml

from ...configs.files import replace_text
from ...configs.machine import load_machine
from ..engine.events import Ended
from ..engine.run import Run, active, git_commit
from ..report.run_story import RunStory
from ..store.shared import open_store
from ..store.store import Store
from . import prefect
from .mlflow_client import PARENT_TAG, Mlflow, made_by
from .pages import Cards, Story
from .terminal import LogDisplay, chosen_display
from .tracker import Tracker, as_params

CONFIG_TAG = "klear.config"
_NOT_COMPARED = ("collect", "benchmarks", "topology", "report", "stall_minutes")
_OF_NUMBERS = (".precision", ".dtype")  # of a runtime; the rest of it changes no result


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
    mixed: tuple[str, ...] = ()
    """What does not belong together among its inputs, which somebody allowed."""
    rerun: Mapping[str, Any] = field(default_factory=dict)
    """What the form of a stage begins with that is run again, `changes` by stage; empty: none is
    offered."""

    @property
    def config(self) -> str:
        """16 hex digits of the meaning."""
        return hashlib.sha256(self.meaning.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TrackedRun(Run):
    """A run with those who observe it."""

    tracker: Tracker = field(default_factory=Tracker)
    display: LogDisplay = field(default_factory=LogDisplay)
    pages: Story = field(default_factory=Story)


@contextmanager
def run_context(spec: RunSpec) -> Iterator[TrackedRun]:
    """The run that stages called inside the block belong to; ends it in MLflow on the way out."""
    machine, flow_run = load_machine(), prefect.this_flow_run()
    store = open_store(machine)
    tracker = Tracker(machine.mlflow_url, f"klear-{spec.profile}", spec.changed)
    state = RunState(store, spec.config)
    rerun = {**spec.rerun, "mixed": bool(spec.mixed)} if spec.rerun else {}
    shown = prefect.PrefectObserver(flow_run.id, tracker.run_url, rerun, tracker.stage_url)
    display = chosen_display.get() or LogDisplay()
    logger, display.logger = display.logger, shown.logger
    _crash_orphans(tracker, store, state, flow_run.id)
    if not spec.parent:  # cells share the flow run of their ablation, whose stages are under way
        prefect.crash_task_runs(flow_run.id)
    with store.lock(state.lock, wait=False) as alone:
        run_id = _begin_in_mlflow(spec, tracker, flow_run, state if alone else None)
        pages = Story(tracker.run_url)
        run = TrackedRun(
            store=store,
            seed=spec.seed,
            run_id=run_id,
            observers=(Cards(store), shown, tracker, display, pages),
            force=spec.force,
            verify=spec.verify,
            stall_minutes=spec.stall_minutes,
            tracker=tracker,
            display=display,
            pages=pages,
        )
        pages.begin = RunStory(
            name=flow_run.name or tracker.name,
            started=run.began.strftime("%Y-%m-%d %H:%M UTC"),
            links={
                "Prefect": flow_run.url,
                "MLflow": tracker.run_url(run_id),
                "charts": tracker.view_url(),
            },
            changes=tuple(f"{name}={value}" for name, value in spec.changed),
            mixed=spec.mixed,
        )
        # A cell is watched with the outer run.
        watch = nullcontext() if spec.parent else prefect.watch_cancel_requests(flow_run.id)
        try:
            with active(run), watch:
                yield run
        except BaseException as error:
            tracker.finish(run_id, prefect.status_of(error))
            run.tell(Ended(error))
            raise
        finally:
            display.logger = logger  # a cell's display is that of its ablation
        tracker.finish(run_id, "FINISHED")
        if alone:
            state.path.unlink(missing_ok=True)
        run.tell(Ended())


def _begin_in_mlflow(
    spec: RunSpec, tracker: Tracker, flow_run: prefect.FlowRun, state: "RunState | None"
) -> str:
    """The id of the run in MLflow: the one that `state` knows if the same work died, or a new one.
    Without a `state` somebody else runs the same work at this moment."""
    forced = ",".join(sorted(spec.force))
    last = state.read() if state else {}
    # Another --force gets a run of its own, in which the stages are redone; so does a cell of
    # another ablation, or of another run of the same one.
    belongs = {"force": forced, "parent": spec.parent}
    same_work = all(last.get(name, "") == value for name, value in belongs.items())
    resume = last.get("mlflow_run", "") if same_work else ""
    tags = {
        **({PARENT_TAG: spec.parent} if spec.parent else {}),
        "klear.kind": spec.kind,
        "klear.seed": str(spec.seed),
        CONFIG_TAG: spec.config,
        **made_by(git_commit()),
        "klear.changed": ", ".join(f"{n}={v}" for n, v in spec.changed) or "nothing",
        "prefect.flow_run_id": flow_run.id,
    }
    # A finished cell has no state any more: its ablation, continued, finds it by its tags.
    same = (PARENT_TAG, CONFIG_TAG) if spec.parent else ()
    run_id = tracker.start_pipeline(spec.name or flow_run.name, tags, resume, same)
    # What MLflow compares runs by: every setting that may change a result.
    stages = {n: v for n, v in spec.resolved.items() if n not in _NOT_COMPARED}
    named = as_params(stages).items()
    params = {n: v for n, v in named if "runtime." not in n or n.endswith(_OF_NUMBERS)}
    options: dict[str, Any] = {"Dumper": yaml.CSafeDumper, "sort_keys": False}
    text = yaml.dump(dict(spec.resolved), allow_unicode=True, **options)
    tracker.put("parameters", lambda server: server.params(run_id, params))
    tracker.put("settings", lambda s: s.log_text(run_id, text, "config/resolved.yaml"))
    if state:
        state.write(mlflow_run=run_id, flow_run=flow_run.id, **belongs)
    return run_id


class RunState:
    """Which run is unfinished for one configuration, so that the same command continues it. The
    file exists from start to success; a free lock beside it means that the run died."""

    def __init__(self, store: Store, config: str) -> None:
        self.path, self.lock = store.root / ".runs" / f"{config}.json", f"run-{config}"

    def read(self) -> dict[str, str]:
        with suppress(FileNotFoundError, ValueError):  # a power cut tore it: the run begins anew
            return json.loads(self.path.read_text())
        return {}

    def write(self, **entries: str) -> None:
        replace_text(self.path, json.dumps({**self.read(), **entries}))


def _crash_orphans(tracker: Tracker, store: Store, own: RunState, flow_run: str) -> None:
    """Mark runs whose process is gone as crashed in Prefect and MLflow; those that were not marked
    yet. The same command still continues each."""
    states, alive = sorted(own.path.parent.glob("*.json")), set[str]()
    for path in states:  # an ablation outlives a cell that failed
        state = RunState(store, path.stem)
        with store.lock(state.lock, wait=False) as free:
            alive.add("" if free else state.read().get("flow_run", ""))
    for path in states:
        state = RunState(store, path.stem)
        with store.lock(state.lock, wait=False) as free:
            left = state.read() if free else {}
            if not (dead := left.get("flow_run")) or dead in alive - {flow_run}:
                continue
            if dead != flow_run and not prefect.mark_crashed(dead):
                continue
            state.write(flow_run="")
        if path != own.path:
            send = partial(Mlflow.mark_crashed, run_id=left["mlflow_run"])
            tracker.put(f"the end of the orphaned run {left['mlflow_run']}", send)
