"""Opening a run: its MLflow parent, its ledger, and the burial of runs that died."""

import atexit
import gc
import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import yaml
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.runtime import deployment
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Crashed

from configs.machine import load_machine
from tasks.cancelling import cancellable, say_cancelled_if_asked
from tasks.display import Both, Plain, chosen_display
from tasks.gpu_slot import sharing_gpus
from tasks.plan import flat
from tasks.prefect_away import wait_for_prefect
from tasks.run import Ledger, Run, active, dead_ledgers, git_commit
from tasks.shared_store import open_store
from tasks.store import Store
from tasks.task_events import remember_task_events, tell_again_if_prefect_was_away
from tasks.tracker import Tracker
from tasks.tracking import Mlflow

# A process that opened a run holds 300,000 objects. Sweeping them for cycles before it ends takes
# it a second or more, in which a cancelled run would still be seen to live.
atexit.register(gc.freeze)
wait_for_prefect()
remember_task_events()
LONGEST_LAUNCH = timedelta(minutes=10)
_opened_here: set[str] = set()
"""Flow runs that this process opened: what is under way in them is no killed attempt's."""
_NOT_COMPARED = ("collect", "benchmarks", "topology", "report", "stall_minutes")
PARENT_TAG, CONFIG_TAG = "mlflow.parentRunId", "klear.config"
_BURIED = "its process ended without a word; the same command continues its work"


@dataclass(frozen=True)
class Wanted:
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
    until: str = ""
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
def opened(wanted: Wanted) -> Iterator[Run]:
    """The run that stages called inside the block belong to; ends it in MLflow on the way out."""
    machine = load_machine()
    store = open_store(machine)
    flow_run = str(this_flow_run.id)
    dead = _bury_the_dead(store, flow_run)
    if flow_run not in _opened_here:  # an ablation is opened again for each of its cells
        bury_task_runs(flow_run)
    _opened_here.add(flow_run)

    tracker = Tracker(machine.mlflow_uri, f"klear-{wanted.profile}")
    for other in dead:
        if other.config != wanted.config:
            tracker.put("the end of a run that died", partial(_bury_in_mlflow, other))
    ledger = Ledger(store, wanted.config)
    with store.lock(f"run-{wanted.config}", wait=False) as mine:
        last = ledger.read() if mine else {}
        forced = ",".join(sorted(wanted.force))
        # Another --force is another wish: it gets a run of its own, in which the stages are redone.
        resume = last.get("mlflow_run", "") if last.get("force", "") == forced else ""
        name = wanted.name or this_flow_run.name or ""
        # A cell that is done has no ledger any more: its matrix, continued, finds it by its tags.
        same = (PARENT_TAG, CONFIG_TAG) if wanted.parent else ()
        run_id = tracker.start_pipeline(name, _tags(wanted, flow_run), resume, same)
        tracker.params(run_id, _params(wanted.resolved))
        tracker.note(run_id, way_back())
        if mine:
            ledger.write(mlflow_run=run_id, flow_run=flow_run, force=forced)
        resolved = yaml.safe_dump(dict(wanted.resolved), sort_keys=False, allow_unicode=True)
        tracker.log_text(run_id, resolved, "config/resolved.yaml")
        run = Run(
            store=store,
            seed=wanted.seed,
            run_id=run_id,
            tracker=tracker,
            display=Both(chosen_display(), Plain(get_run_logger())),
            force=wanted.force,
            until=wanted.until,
            verify=wanted.verify,
            stall_minutes=wanted.stall_minutes,
            orchestrated=True,
        )
        try:
            alone = deployment.id or wanted.parent  # a worker watches, or the outer run
            watch = nullcontext() if alone else cancellable(flow_run)
            with active(run), sharing_gpus(machine.home / "gpu", machine.gpu_slots), watch:
                yield run
        except BaseException as error:
            if isinstance(error, Exception):
                tracker.finish(run_id, "FAILED")
                tell_again_if_prefect_was_away(flow_run)
            else:
                tracker.finish(run_id, "KILLED")
                say_cancelled_if_asked(flow_run)
            raise
        tracker.finish(run_id, "FINISHED")
        if mine:
            ledger.done()
        tell_again_if_prefect_was_away(flow_run)


def way_back() -> str:
    """From the run's page in MLflow to the one in Prefect, as Markdown; '' where there is none."""
    return f"[This run in Prefect]({this_flow_run.ui_url})\n\n" if this_flow_run.ui_url else ""


def _params(resolved: Mapping[str, Any]) -> dict[str, str]:
    """What MLflow compares runs by: every setting that may change a result, by its dotted name."""
    stages = {n: v for n, v in resolved.items() if n not in _NOT_COMPARED}
    return {n: str(v) for n, v in flat(stages).items() if "runtime." not in n}


def _tags(wanted: Wanted, flow_run: str) -> dict[str, str]:
    belongs = {PARENT_TAG: wanted.parent} if wanted.parent else {}
    return belongs | {
        "klear.kind": wanted.kind,
        "klear.profile": wanted.profile,
        "klear.seed": str(wanted.seed),
        CONFIG_TAG: wanted.config,
        "klear.git_commit": git_commit(),
        "prefect.flow_run_id": flow_run,
        "prefect.url": str(this_flow_run.ui_url or ""),
    }


def _bury_the_dead(store: Store, flow_run: str) -> list[Ledger]:
    """Tell Prefect of runs whose process is gone; those that nobody had told of."""
    told = []
    for dead in dead_ledgers(store):
        if left := dead.read().get("flow_run", ""):
            bury(left, keep=flow_run)
            dead.forget(left)
            told.append(dead)
    return told


def _bury_in_mlflow(dead: Ledger, server: Mlflow) -> None:
    """Unless the same command continues it by now."""
    run_id = dead.read().get("mlflow_run", "")
    if run_id and dead.is_dead():
        server.bury(run_id)


def bury(flow_run: str, keep: str) -> None:
    """Mark a flow run whose process is gone as Crashed: nobody else will."""
    if not flow_run or flow_run == keep:
        return
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(flow_run).state  # type: ignore[arg-type]
        except ObjectNotFound:
            return
        if state is not None and _had_a_process(state):
            client.set_flow_run_state(flow_run, Crashed(message=_BURIED), force=True)  # type: ignore[arg-type]
    bury_task_runs(flow_run)


def _had_a_process(state: State) -> bool:
    """Scheduled, AwaitingRetry and Suspended have none: the worker starts one when it is time.

    A Pending that is fresh is a retry whose process is being started and has no ledger yet.
    """
    if state.is_pending():
        return datetime.now(UTC) - state.timestamp > LONGEST_LAUNCH
    waits_in_a_process = state.is_paused() and not state.state_details.pause_reschedule
    return state.is_running() or state.is_cancelling() or waits_in_a_process


def bury_task_runs(flow_run: str) -> None:
    """Task runs that a killed attempt of this flow run left under way, or waiting for an answer,
    would stay so for ever."""
    only = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))  # type: ignore[list-item]
    with get_client(sync_client=True) as client:
        for task_run in client.read_task_runs(flow_run_filter=only):
            state = task_run.state
            if state is not None and not state.is_final():
                logging.getLogger("klear").info("burying task run %s", task_run.name)
                client.set_task_run_state(task_run.id, Crashed(message=_BURIED), force=True)
