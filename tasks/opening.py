"""Opening a pipeline run: its MLflow parent, its ledger, and the burial of runs that died."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import yaml
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Crashed

from configs.base import key_of
from configs.machine import load_machine
from configs.settings import Pipeline
from tasks.display import Both, Plain, chosen_display
from tasks.run import Ledger, Run, active, dead_ledgers, git_commit
from tasks.store import Store
from tasks.tracking import Tracker

_BURIED = "its process ended without a word; the same command continues its work"


@contextmanager
def opened(settings: Pipeline, force: Sequence[str], until: str) -> Iterator[Run]:
    """The run that stages called inside the block belong to; ends it in MLflow on the way out."""
    machine = load_machine()
    store = Store(machine.store)
    config = hashlib.sha256(key_of(settings).encode()).hexdigest()[:16]
    flow_run = str(this_flow_run.id)
    for dead in dead_ledgers(store):
        if left := dead.read().get("flow_run", ""):
            bury(left, keep=flow_run)
            dead.write(flow_run="")
    bury_task_runs(flow_run)

    tracker = Tracker(machine.mlflow_uri, f"klear-{settings.profile}")
    ledger = Ledger(store, config)
    with store.lock(f"run-{config}", wait=False) as mine:
        last = ledger.read() if mine else {}
        forced = ",".join(sorted(force))
        # Another --force is another wish: it gets a run of its own, in which the stages are redone.
        resume = last.get("mlflow_run", "") if last.get("force", "") == forced else ""
        name = f"{settings.profile}-seed{settings.seed}"
        run_id = tracker.start_pipeline(name, _tags(settings, config, flow_run), resume)
        if mine:
            ledger.write(mlflow_run=run_id, flow_run=flow_run, force=forced)
        resolved = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
        tracker.log_text(run_id, resolved, "config/resolved.yaml")
        run = Run(
            store=store,
            seed=settings.seed,
            run_id=run_id,
            tracker=tracker,
            display=Both(chosen_display(), Plain(get_run_logger())),
            force=frozenset(force),
            until=until,
            orchestrated=True,
        )
        try:
            with active(run):
                yield run
        except BaseException as error:
            tracker.finish(run_id, "FAILED" if isinstance(error, Exception) else "KILLED")
            raise
        tracker.finish(run_id, "FINISHED")
        if mine:
            ledger.done()


def _tags(settings: Pipeline, config: str, flow_run: str) -> dict[str, str]:
    return {
        "klear.kind": "pipeline",
        "klear.profile": settings.profile,
        "klear.seed": str(settings.seed),
        "klear.config": config,
        "klear.git_commit": git_commit(),
        "prefect.flow_run_id": flow_run,
        "prefect.url": str(this_flow_run.ui_url or ""),
    }


def bury(flow_run: str, keep: str) -> None:
    """Mark a flow run whose process is gone as Crashed: nobody else will."""
    if not flow_run or flow_run == keep:
        return
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(flow_run).state  # type: ignore[arg-type]
        except ObjectNotFound:
            return
        if state is not None and not state.is_final():
            client.set_flow_run_state(flow_run, Crashed(message=_BURIED), force=True)  # type: ignore[arg-type]
    bury_task_runs(flow_run)


def bury_task_runs(flow_run: str) -> None:
    """Task runs that a killed attempt of this flow run left Running would stay so for ever."""
    only = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))  # type: ignore[list-item]
    with get_client(sync_client=True) as client:
        for task_run in client.read_task_runs(flow_run_filter=only):
            if task_run.state is not None and task_run.state.is_running():
                logging.getLogger("klear").info("burying task run %s", task_run.name)
                client.set_task_run_state(task_run.id, Crashed(message=_BURIED), force=True)
