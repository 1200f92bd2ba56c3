"""What Prefect shows of a run: a task run a stage, artifacts on its page; and what its buttons do.

Stages are told as events, as Prefect's own engine does, and those that were lost with a server are
sent again at the end. Cancel of a run from the command line, Suspend of any and crashed runs go by
the public client: it fails at once where nobody answers, and retries on a busy server
(`PREFECT_CLIENT_MAX_RETRIES`). Whatever is only shown is best effort.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID, uuid4

import httpx
from prefect import Task, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun, TaskRunResult
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, Pause
from prefect.logging.loggers import task_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending, Running
from prefect.utilities.engine import emit_task_run_state_change_event

from ..engine import events
from ..report.figures import figure_of

SECONDS_BETWEEN_LOOKS = 2.0
LOOKS_BETWEEN_HEARTBEATS = 15
PATIENCE_AT_THE_END_S = 240.0
SECONDS_FOR_EVENTS = 3.0  # that are on their way
PAUSE_S, PATIENCE_S = 3.0, 300.0  # between tries to make an artifact; in all
SUSPENDED = "Suspended"
CANCELLED = "every process of this run has ended; the same command, or Retry, continues it"
CRASHED = "its process ended without a word; the same command continues its work"
INTERRUPTED = "ended with its run; its work is kept, and the next run goes on with it"
CTRL_C = "interrupted"
_LOG = logging.getLogger("klear")


class FlowRun(NamedTuple):
    """The flow run of this context; empty outside of one."""

    id: str
    name: str
    url: str


def this_flow_run() -> FlowRun:
    return FlowRun(*(str(getattr(flow_run, n) or "") for n in ("id", "name", "ui_url")))


def status_of(error: BaseException) -> str:
    """How MLflow calls the end of a run by this error."""
    if isinstance(error, Exception):
        return "FAILED"
    return "SCHEDULED" if isinstance(error, Pause) else "KILLED"


@dataclass
class _Shown:
    """The task run of one stage: its state, as far as the server was told."""

    run: TaskRun
    state: State[Any]
    last: Any = None
    """The latest event, which the next one follows."""


class PrefectObserver:
    """Shows each stage as a task run, whose edges lead to the stages that it takes results of."""

    def __init__(self, run: str) -> None:
        self.flow_run = run
        self._shown: dict[str, _Shown] = {}

    def on(self, event: events.Event) -> None:
        match event:
            case events.Waiting(task) | events.Started(task):
                self._begin(task)
            case events.Published(task, artifact, manifest, action, why):
                message = f"{task.stage}/{task.key}  {figure_of(task.stage, artifact.metrics)}"
                if why := why or manifest.why:
                    message = f"{message}; it was computed: {why}"
                name = "Cached" if action == "reused" else "Completed"
                self._set(self._of(task), Completed(name=name, message=message))
            case events.Failed(task, error):
                message = f"{type(error).__name__}: {error}"
                failed: Any = Failed(message=message)
                state = Cancelled(message=INTERRUPTED) if event.interrupted else failed
                self._set(self._of(task), state)
            case events.Ended(error):
                self._end(error)

    def logger(self, stage: str = "") -> Any:
        """Whose lines stand on the page of the stage, or of the run."""
        if shown := self._shown.get(stage):
            return task_run_logger(shown.run)
        return get_run_logger()

    def _begin(self, task: events.Task) -> None:
        shown = self._of(task)
        if not shown.state.is_running():
            shown.run.run_count += 1
            self._set(shown, Running())

    def _of(self, task: events.Task) -> _Shown:
        """A stage's task run; a new one for one that has ended and is called again."""
        current = self._shown.get(task.stage)
        if current and not current.state.is_final():
            return current
        above, pending = (self._shown.get(i.stage) for i in task.inputs), Pending()
        times: Any = {"expected_start_time": pending.timestamp}
        run = TaskRun(
            id=uuid4(),
            name=": ".join(filter(None, (task.group, task.stage))),
            flow_run_id=UUID(self.flow_run),
            task_key=task.stage,
            dynamic_key=uuid4().hex,
            task_inputs={"wait_for": [TaskRunResult(id=s.run.id) for s in above if s]},
            **times,
        )
        shown = self._shown[task.stage] = _Shown(run, pending)
        return shown

    def _set(self, shown: _Shown, state: State[Any]) -> None:
        """Tell the server, by an event that is sent later."""
        before, shown.state = shown.state, state
        run: Any = shown.run  # its type of times differs by version of Python
        run.start_time = run.start_time or state.timestamp
        if state.is_final():
            run.end_time, run.total_run_time = state.timestamp, state.timestamp - run.start_time
        change = {"task_run": run, "initial_state": before, "validated_state": state}
        shown.last = emit_task_run_state_change_event(**change, follows=shown.last)

    def _end(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, (Exception, Pause)):
            ended = {str(s.run.id): s for s in self._shown.values() if s.state.is_final()}
            settle_task_runs(self.flow_run, ended)
        elif (state := state_of(self.flow_run)) and state.is_cancelling():
            set_cancelled(self.flow_run)


@contextmanager
def watch_cancel_requests(flow_run: str) -> Iterator[None]:
    """Raise in the main thread what somebody asked for on the page of the run: KeyboardInterrupt
    for Cancel (a run of a worker is ended by that) or, of any run, Pause, which Prefect takes for
    Suspended. Says every now and then that the run is alive: Prefect's own heartbeat has it wait
    for up to a second at its end."""
    over, main = threading.Event(), threading.main_thread().ident or 0
    requests: list[BaseException] = []

    def watch() -> None:
        alive = {"prefect.resource.id": f"prefect.flow-run.{flow_run}"}
        for looks in count():
            if looks % LOOKS_BETWEEN_HEARTBEATS == 0:
                emit_event("prefect.flow-run.heartbeat", alive)
            if over.wait(SECONDS_BETWEEN_LOOKS):
                return
            state = state_of(flow_run)
            if state and state.is_cancelling() and not is_worker_run():
                requests.append(KeyboardInterrupt("cancelled in the Prefect UI"))
            elif state and state.is_paused() and state.name == SUSPENDED:
                requests.append(Pause(state=state))
            if requests:
                # Once: whatever clears up afterwards is not interrupted. And not SIGINT: a shell
                # that starts a command in the background makes it ignore that one.
                signal.pthread_kill(main, signal.SIGUSR1)
                return

    def interrupt(_: int, __: FrameType | None) -> None:
        if requests and not over.is_set():
            raise requests[0]

    signal.signal(signal.SIGUSR1, interrupt)  # for good: one may be on its way at the end
    threading.Thread(target=watch, name="watch-ui", daemon=True).start()
    try:
        yield
    finally:
        over.set()


P = ParamSpec("P")
R = TypeVar("R")


def interrupts_as_cancelled(body: Callable[P, R]) -> Callable[P, R]:
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
    """Mark task runs that a killed attempt of this flow run left under way."""
    with get_client(sync_client=True) as client:
        _end_task_runs(client, flow_run, Crashed(message=CRASHED))


def _end_task_runs(client: SyncPrefectClient, flow_run: str, state: State[Any]) -> None:
    """Set the state of those that have none that is final."""
    for run in _task_runs(client, flow_run):
        if run.state is not None and not run.state.is_final():
            client.set_task_run_state(run.id, state, force=True)


def _task_runs(client: SyncPrefectClient, flow_run: str) -> list[TaskRun]:
    only = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
    return client.read_task_runs(flow_run_filter=only)


def settle_task_runs(flow_run: str, ended: dict[str, _Shown]) -> None:
    """Tell the server last states that it does not know, by id of the task run: they reach it as
    events, which are lost with a server that dies. Waits for one that is unreachable."""
    began, pause = time.monotonic(), SECONDS_FOR_EVENTS / 20
    while ended:
        try:
            with get_client(sync_client=True) as client:
                states = {str(run.id): run.state_type for run in _task_runs(client, flow_run)}
                lost = {i: s for i, s in ended.items() if states.get(i) != s.state.type}
                if not lost or time.monotonic() - began > SECONDS_FOR_EVENTS:
                    for id_, shown in lost.items():
                        if id_ not in states:
                            _create(client, shown)
                        client.set_task_run_state(UUID(id_), shown.state, force=True)
                    return
        except Exception as error:
            waited, pause = time.monotonic() - began, SECONDS_BETWEEN_LOOKS
            if not isinstance(error, httpx.TransportError) or waited > PATIENCE_AT_THE_END_S:
                return _LOG.warning("Prefect's page lacks states of stages: %s", error)
        time.sleep(pause)


def _create(client: SyncPrefectClient, shown: _Shown) -> None:
    """A task run that the server has never heard of."""
    run, placeholder = shown.run, Task(fn=lambda: None, name=shown.run.name)
    edges: Any = {"id": run.id, "name": run.name, "task_inputs": run.task_inputs}
    client.create_task_run(placeholder, run.flow_run_id, run.dynamic_key, **edges)


def read_secret(block: str) -> str:
    """The value of a Secret block; raises ValueError where there is none of this name."""
    secret = Secret.load(block, _sync=True)  # type: ignore[call-arg]
    return str(secret.get())  # type: ignore[union-attr]


def is_worker_run() -> bool:
    """Whether a worker started this run, so that its page is where people look."""
    return "PREFECT__FLOW_RUN_ID" in os.environ


def show_link(key: str, address: str, text: str) -> None:
    """A link on the page of the run."""
    _show(create_link_artifact, key=key, link=address, link_text=text, description=text)


def show_table(key: str, rows: list[dict[str, Any]], description: str) -> None:
    """A table on the page of the run."""
    _show(create_table_artifact, key=key, table=rows, description=description)


def show_markdown(key: str, text: str) -> None:
    """Text on the page of the run."""
    _show(create_markdown_artifact, key=key, markdown=text)


def _show(create: Callable[..., Any], **fields: Any) -> None:
    """Make an artifact, and try again while no server answers. A page is not worth a run: after
    `PATIENCE_S`, or when the server refuses it, the log says so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return create(**fields)
        except httpx.HTTPError as error:
            if not isinstance(error, httpx.TransportError) or time.monotonic() > deadline:
                return get_run_logger().warning("%s is not shown: %s", fields["key"], error)
        time.sleep(PAUSE_S)


def _best_effort(call: Callable[[SyncPrefectClient], Any]) -> Any:
    """What `call` returns; None where Prefect does not answer."""
    try:
        with get_client(sync_client=True) as client:
            return call(client)
    except Exception as error:
        _LOG.debug("Prefect did not answer: %s", error)
        return None
