"""What Prefect shows of runs and stages that it cannot know by itself, by its public client.

Cancel of a run from the command line, Suspend of any, crashed runs, stages that wait for approval,
and states that were lost with a server. `get_client` fails at once where nobody answers, and
retries on a busy server (`PREFECT_CLIENT_MAX_RETRIES`); whatever is only shown is best effort.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from types import FrameType
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import httpx
from prefect import Task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, Pause
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed, Crashed, Failed, Paused

SECONDS_BETWEEN_LOOKS = 2.0
LOOKS_BETWEEN_HEARTBEATS = 15
PATIENCE_AT_THE_END_S = 240.0
SECONDS_FOR_EVENTS = 3.0  # that are on their way
WAITING, SUSPENDED = "WaitingForApproval", "Suspended"
CANCELLED = "every process of this run has ended; the same command, or Retry, continues it"
CRASHED = "its process ended without a word; the same command continues its work"
CTRL_C = "interrupted"
_LOG = logging.getLogger("klear")


@contextmanager
def heeding_the_ui(flow_run: str) -> Iterator[None]:
    """Raise in the main thread what somebody asked for on the page of the run: KeyboardInterrupt
    for Cancel (a run of a worker is ended by that) or, of any run, Pause, which Prefect takes for
    Suspended. Says every now and then that the run is alive: Prefect's own heartbeat has it wait
    for up to a second at its end."""
    over, main = threading.Event(), threading.main_thread().ident or 0
    asked: list[BaseException] = []

    def watch() -> None:
        alive = {"prefect.resource.id": f"prefect.flow-run.{flow_run}"}
        for looks in count():
            if looks % LOOKS_BETWEEN_HEARTBEATS == 0:
                emit_event("prefect.flow-run.heartbeat", alive)
            if over.wait(SECONDS_BETWEEN_LOOKS):
                return
            state = state_of(flow_run)
            if state and state.is_cancelling() and not is_worker_run():
                asked.append(KeyboardInterrupt("cancelled in the Prefect UI"))
            elif state and state.is_paused() and state.name == SUSPENDED:
                asked.append(Pause(state=state))
            if asked:
                # Once: whatever clears up afterwards is not interrupted. And not SIGINT: a shell
                # that starts a command in the background makes it ignore that one.
                signal.pthread_kill(main, signal.SIGUSR1)
                return

    def interrupt(_: int, __: FrameType | None) -> None:
        if asked and not over.is_set():
            raise asked[0]

    signal.signal(signal.SIGUSR1, interrupt)  # for good: one may be on its way at the end
    threading.Thread(target=watch, name="watch-ui", daemon=True).start()
    try:
        yield
    finally:
        over.set()


P = ParamSpec("P")
R = TypeVar("R")


def ends_cancelled(body: Callable[P, R]) -> Callable[P, R]:
    """Below `@flow`: Ctrl-C and Cancel end the run as Cancelled. To Prefect they are crashes."""

    @wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except KeyboardInterrupt as error:
            state: Any = Cancelled(message=str(error) or CTRL_C)
            return state

    return run


def state_of(flow_run: str) -> State[Any] | None:
    """Best effort."""
    return _best_effort(lambda client: client.read_flow_run(UUID(flow_run)).state)


def set_cancelled(flow_run: str) -> None:
    """Mark the run, and stages whose end is not known yet, before its worker would. Best effort."""
    state = Cancelled(message=CANCELLED)

    def mark(client: SyncPrefectClient) -> None:
        _end_task_runs(client, flow_run, state)
        client.set_flow_run_state(UUID(flow_run), state, force=True)

    _best_effort(mark)


def mark_crashed(flow_run: str) -> None:
    """Mark a flow run whose process is gone, and its task runs, as Crashed: nobody else will."""
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(UUID(flow_run)).state
        except ObjectNotFound:
            return
        # One that is scheduled, paused or pending may have a process that is still to come.
        if state is not None and (state.is_running() or state.is_cancelling()):
            client.set_flow_run_state(UUID(flow_run), Crashed(message=CRASHED), force=True)
    crash_task_runs(flow_run)


def crash_task_runs(flow_run: str) -> None:
    """Mark task runs that a killed attempt of this flow run left under way or waiting."""
    with get_client(sync_client=True) as client:
        _end_task_runs(client, flow_run, Crashed(message=CRASHED))


def _end_task_runs(client: SyncPrefectClient, flow_run: str, state: State[Any]) -> None:
    """Set the state of those that have none that is final."""
    for found in _task_runs(client, flow_run):
        if found.state is not None and not found.state.is_final():
            client.set_task_run_state(found.id, state, force=True)


def _task_runs(client: SyncPrefectClient, flow_run: str) -> list[TaskRun]:
    only = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
    return client.read_task_runs(flow_run_filter=only)


EndedTasks = dict[str, tuple[Task[..., Any], State[Any]]]
"""Task run → its task and last state."""


def settle_task_runs(flow_run: str, ended: EndedTasks) -> None:
    """Tell the server last states that it does not know: task runs reach it as events, which are
    lost with a server that dies. Waits for one that is unreachable. Best effort."""
    began, pause = time.monotonic(), SECONDS_FOR_EVENTS / 20
    while ended:
        try:
            with get_client(sync_client=True) as client:
                known = {str(found.id): found.state_type for found in _task_runs(client, flow_run)}
                lost = [id_ for id_, (_, state) in ended.items() if known.get(id_) != state.type]
                if not lost or time.monotonic() - began > SECONDS_FOR_EVENTS:
                    for id_, (task, state) in ((id_, ended[id_]) for id_ in lost):
                        if id_ not in known:
                            about = {"id": UUID(id_), "name": task.name, "state": state}
                            client.create_task_run(task, UUID(flow_run), id_, **about)
                        client.set_task_run_state(UUID(id_), state, force=True)
                    return
        except Exception as error:
            waited, pause = time.monotonic() - began, SECONDS_BETWEEN_LOOKS
            if not isinstance(error, httpx.TransportError) or waited > PATIENCE_AT_THE_END_S:
                return _LOG.warning("Prefect's page lacks states of stages: %s", error)
        time.sleep(pause)


class ApprovalRequired(RuntimeError):
    """What a stage raises that a person may answer. `task_run` is the one that shows it, if any."""

    task_run: str = ""


def is_worker_run() -> bool:
    """Whether a worker started this run, so that its page is where people look."""
    return "PREFECT__FLOW_RUN_ID" in os.environ


def waiting_state(error: ApprovalRequired) -> State[None]:
    """The state of the current task run until `settle_approval`: Prefect can pause a run, not a
    task, so the task run ends as paused when the question comes up."""
    error.task_run = str(task_run.id)
    return Paused(name=WAITING, message=str(error))


def settle_approval(error: ApprovalRequired, approved: bool) -> None:
    """The state of the task run that waited. Best effort."""
    state = Completed(name="Approved") if approved else Failed(name="Refused")
    said = state.model_copy(update={"message": str(error)})
    _best_effort(lambda c: c.set_task_run_state(UUID(error.task_run), said, force=True))


def _best_effort(call: Callable[[SyncPrefectClient], Any]) -> Any:
    """What `call` returns; None where Prefect does not answer."""
    try:
        with get_client(sync_client=True) as client:
            return call(client)
    except Exception as error:
        _LOG.debug("Prefect did not answer: %s", error)
        return None
