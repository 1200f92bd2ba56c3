"""What Prefect shows of a run: a task run a stage, artifacts on its page; and what its buttons do.

Stages are told as events, as Prefect's own engine does, and those that were lost with a server are
sent again at the end. Cancel of a run from the command line, Suspend of any and crashed runs go by
the public client: it fails at once where nobody answers, and retries on a busy server
(`PREFECT_CLIENT_MAX_RETRIES`). Whatever is only shown is best effort.
"""

import json
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import count
from types import FrameType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
from prefect import Task, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun, TaskRunResult
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.exceptions import Abort, ObjectNotFound, Pause
from prefect.logging.loggers import task_run_logger
from prefect.runtime import flow_run
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending, Running
from prefect.utilities.engine import emit_task_run_state_change_event

from ...configs.settings.explain import ConfigError
from ...training.sizing import DoesNotFit
from ..engine import events
from ..report.figures import figure_of
from ..report.run_story import duration
from ..store.store import Artifact
from .terminal import ProgressRate

SECONDS_BETWEEN_LOOKS = 2.0
LOOKS_BETWEEN_HEARTBEATS = 15
LOOKS_AT_A_WORKER = 5  # that is to end its cancelled run; Prefect 3.7's may forget one it retried
PATIENCE_AT_THE_END_S = 240.0
SECONDS_FOR_EVENTS, SECONDS_FOR_ARTIFACTS = 3.0, 5.0  # that are on their way
PAUSE_S, PATIENCE_S = 3.0, 300.0  # between tries to make an artifact; in all
SECONDS_BETWEEN_PROGRESS = 10.0  # and before the first: shorter stages need none
STAGE_FORM = "klear/stage"
CANCELLED = "every process of this run has ended; the same command, or Retry, continues it"
CRASHED = "its process ended without a word; the same command continues its work"
INTERRUPTED = "ended with its run; its work is kept, and the next run goes on with it"
SUSPENDED, CTRL_C = "Suspended", "interrupted"
STAGES_TABLE = "Each stage: its run in MLflow, and its form to run it again with these inputs"
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
    rate: ProgressRate = field(default_factory=ProgressRate)
    due: float = field(default_factory=lambda: time.monotonic() + SECONDS_BETWEEN_PROGRESS)
    """When its progress may be shown next."""
    reported: bool = False
    percent: float = 0.0
    artifact: UUID | None = None
    """That shows it, once the server has given it an id."""
    page: UUID | None = None  # the artifact that leads on, likewise


class ArtifactSender:
    """Sends artifacts from a thread of its own, so that no stage waits for the server."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[SyncPrefectClient], None] | None]
        self._jobs, self._thread = queue.SimpleQueue(), None

    def put(self, job: Callable[[SyncPrefectClient], None]) -> None:
        """Best effort: one that fails is a line in the debug log."""
        if self._thread is None:
            run, work = copy_context().run, (_best_effort, self._send_all)
            self._thread = threading.Thread(target=run, args=work, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def close(self, seconds: float) -> None:
        """Send what is on its way, for so long at most."""
        if self._thread:
            self._jobs.put(None)
            self._thread.join(seconds)

    def _send_all(self, client: SyncPrefectClient) -> None:
        while job := self._jobs.get():
            try:
                job(client)
            except Exception as error:
                _LOG.debug("an artifact is not shown: %s", error)


class PrefectObserver:
    """Shows each stage as a task run, whose edges lead to the stages that it takes results of, with
    its progress and links: to its run in MLflow and, once it has ended, to run it again.

    `url_of` is where a run of MLflow is shown, `stage_url` where that of a stage under way is,
    `rerun` what the form of a stage begins with (none is offered without).
    """

    def __init__(
        self, run: str, url_of: Callable[[str], str] = lambda mlflow_run: "",
        rerun: Mapping[str, Any] = {}, stage_url: Callable[[str], str] = lambda stage: "",
    ) -> None:  # fmt: skip
        self.flow_run, self.url_of, self.rerun, self.stage_url = run, url_of, rerun, stage_url
        self._shown: dict[str, _Shown] = {}
        self._rows: list[str] = []
        self._form = ""
        self._sender = ArtifactSender()

    def on(self, event: events.Event) -> None:
        match event:
            case events.Waiting(task) | events.Started(task):
                self._begin(task)
            case events.Published(task, artifact, manifest, action, why):
                message = f"{task.stage}/{task.key}  {figure_of(task.stage, artifact.metrics)}"
                if why := why or manifest.why:
                    message = f"{message}; it was computed: {why}"
                name = "Cached" if action == "reused" else "Completed"
                shown = self._of(task)
                self._set(shown, Completed(name=name, message=message))
                self._show_progress(shown, 100.0, f"{task.stage}: done")
                self._link(shown, task, message, artifact, action)
            case events.Progress(stage, done, total, note) if shown := self._shown.get(stage):
                text = f"{stage}: {shown.rate.describe(done, total, note)}"
                if total and time.monotonic() >= shown.due and not shown.state.is_final():
                    if not shown.reported and (url := self.stage_url(stage)):
                        page = partial(_write_page, shown=shown, text=f"[MLflow]({url})")
                        self._sender.put(page)
                    shown.due, shown.reported = time.monotonic() + SECONDS_BETWEEN_PROGRESS, True
                    shown.percent = min(100.0, 100 * done / total)
                    self._show_progress(shown, shown.percent, text)
            case events.Failed(task, error):
                message = f"{type(error).__name__}: {error}"
                failed: Any = Failed(message=message)
                state = Cancelled(message=INTERRUPTED) if event.interrupted else failed
                shown = self._of(task)
                self._set(shown, state)
                ended = f"{task.stage}: {state.type.value.lower()}"
                self._show_progress(shown, shown.percent, ended)
                if not event.interrupted:
                    self._link(shown, task, message)
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

    def _show_progress(self, shown: _Shown, percent: float, text: str) -> None:
        """As an artifact of the stage; of one that took seconds there is none."""
        runs = {"flow_run_id": UUID(self.flow_run), "task_run_id": shown.run.id}
        fields: Any = {"description": text, "data": percent}

        def send(client: SyncPrefectClient) -> None:
            if shown.artifact:
                client.update_artifact(shown.artifact, ArtifactUpdate(**fields))
            else:
                first = ArtifactCreate(key="klear-progress", type="progress", **runs, **fields)
                shown.artifact = client.create_artifact(first).id

        if shown.reported:
            self._sender.put(send)

    def _link(
        self, shown: _Shown, task: events.Task, message: str, result: Artifact | None = None,
        action: str = "failed",
    ) -> None:  # fmt: skip
        """Where the stage leads: on its page, and in the run's table."""
        url = self.url_of(result.mlflow_run) if result else self.stage_url(task.stage)

        def send(client: SyncPrefectClient) -> None:
            form = self._form_of(client, task, bool(result))
            links = [f"[MLflow]({url})"] if url else []
            links += [f"[rerun this stage]({form})"] if form else []
            took = duration(result.seconds) if result else ""
            self._rows.append(f"| {task.stage} | {' · '.join(links)} | {action} | {took} |")
            if links and action != "reused":
                _write_page(client, shown, "\n\n".join([message.replace("|", "/"), *links]))

        if url or self.rerun:
            self._sender.put(send)

    def _form_of(self, client: SyncPrefectClient, task: events.Task, has_result: bool) -> str:
        """The form of this stage, filled in: these inputs, these settings."""
        if not self.rerun:
            return ""
        if not self._form:
            with suppress(ObjectNotFound):
                self._form = str(client.read_deployment_by_name(STAGE_FORM).id)
        values = {"stage": task.stage, "changes": self.rerun["changes"].get(task.stage, "")}
        if has_result:
            values["inputs_as_of"] = f"{task.stage}/{task.key}"
        else:
            values["other_inputs"] = "\n".join(f"{a.stage}={a.key}" for a in task.inputs)
        return form_url(self._form, {**self.rerun, **values})

    def _end(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, (Exception, Pause)):
            ended = {str(s.run.id): s for s in self._shown.values() if s.state.is_final()}
            settle_task_runs(self.flow_run, ended)
            self._sender.close(SECONDS_FOR_ARTIFACTS)
            if self._rows and self.rerun:
                text = "\n".join(["| stage | | | computed in |", "|---|---|---|---|", *self._rows])
                page: Any = {"key": "klear-stages", "type": "markdown", "data": text}
                page |= {"description": STAGES_TABLE, "flow_run_id": UUID(self.flow_run)}
                _best_effort(lambda client: client.create_artifact(ArtifactCreate(**page)))
        elif (state := state_of(self.flow_run)) and state.is_cancelling():
            by_worker = is_worker_run() and not isinstance(error, KeyboardInterrupt)
            set_cancelled(self.flow_run, by_worker)
            if (context := FlowRunContext.get()) and context.flow_run:
                context.flow_run.state = Cancelled(message=CANCELLED)  # else its log says Running


def _write_page(client: SyncPrefectClient, shown: _Shown, text: str) -> None:
    """The artifact of a stage that leads on: made, or with another text."""
    if shown.page:
        return client.update_artifact(shown.page, ArtifactUpdate(data=text))
    page: Any = {"key": "klear-stage", "type": "markdown", "task_run_id": shown.run.id}
    page |= {"description": "Its run in MLflow, and its form to run it again", "data": text}
    shown.page = client.create_artifact(ArtifactCreate(**page)).id


@contextmanager
def watch_cancel_requests(flow_run: str) -> Iterator[None]:
    """Raise in the main thread what somebody asked for on the page of the run: KeyboardInterrupt
    for Cancel (where a worker that should does not end it) or Pause, which Prefect takes for
    Suspended. Says every now and then that the run is alive: Prefect's own heartbeat has it wait
    for up to a second at its end."""
    over, main = threading.Event(), threading.main_thread().ident or 0
    requests: list[BaseException] = []

    def watch() -> None:
        with get_client(sync_client=True) as client:  # one: each reads all certificates anew
            look(client)

    def look(client: SyncPrefectClient) -> None:
        alive = {"prefect.resource.id": f"prefect.flow-run.{flow_run}"}
        patience = LOOKS_AT_A_WORKER if is_worker_run() else 0
        for looks in count():
            if looks % LOOKS_BETWEEN_HEARTBEATS == 0:
                emit_event("prefect.flow-run.heartbeat", alive)
            if over.wait(SECONDS_BETWEEN_LOOKS):
                return
            state = state_of(flow_run, client)
            patience -= bool(state and state.is_cancelling())
            if state and state.is_cancelling() and patience < 0:
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


def ends_in_a_sentence(body: Callable[P, R]) -> Callable[P, R]:
    """Below `@flow`: Ctrl-C and Cancel end the run as Cancelled, and what cannot be run as Failed,
    with a sentence that says why. To Prefect they are crashes, and tracebacks."""

    @wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except KeyboardInterrupt as error:
            state: Any = Cancelled(message=str(error) or CTRL_C)
        except (ConfigError, DoesNotFit) as error:
            state = Failed(message=str(error))
            context = FlowRunContext.get()
            if is_worker_run() and context and context.flow_run:
                # Of a worker's run, to return it would be a traceback.
                context.client.set_flow_run_state(context.flow_run.id, state)
                context.flow_run.state = state
                raise Abort(str(error)) from None
        return state

    return run


def state_of(flow_run: str, client: SyncPrefectClient | None = None) -> State[Any] | None:
    """Best effort."""
    return _best_effort(lambda client: client.read_flow_run(UUID(flow_run)).state, client)


def set_cancelled(flow_run: str, by_worker: bool = False) -> None:
    """Mark the run, and stages whose end is not known yet. `by_worker`: it marks the run, once the
    process has ended; a Retry before that would be lost. Best effort."""
    state = Cancelled(message=CANCELLED)

    def mark(client: SyncPrefectClient) -> None:
        _end_task_runs(client, flow_run, state)
        if not by_worker:
            client.set_flow_run_state(UUID(flow_run), state, force=True)

    _best_effort(mark)


def mark_crashed(flow_run: str) -> bool:
    """Mark a flow run whose process is gone, and its tasks, as Crashed; False if suspended."""
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(UUID(flow_run)).state
        except ObjectNotFound:
            return True
        # One that is scheduled, paused or pending may have a process that is still to come.
        if state is not None and (state.is_running() or state.is_cancelling()):
            client.set_flow_run_state(UUID(flow_run), Crashed(message=CRASHED), force=True)
    crash_task_runs(flow_run)
    return state is None or not state.is_paused()


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


def form_url(form: str, parameters: Mapping[str, Any]) -> str:
    """The page of a form with its fields filled in; '' without its id."""
    # One of Prefect's two UIs decodes a % twice.
    text = quote(json.dumps(parameters).replace("%", "\\u0025"), safe="")
    page = f"{get_current_settings().ui_url}/deployments/deployment/{form}/run"
    return f"{page}?parameters={text}" if form else ""


def show(kind: Literal["link", "table", "markdown"], key: str, content: Any, text: str) -> None:
    """An artifact on the page of the run, which `text` describes; tried again while no server
    answers. A page is not worth a run: after `PATIENCE_S`, or when the server refuses it, the log
    says so."""
    link = partial(create_link_artifact, link_text=text)
    creators = {"link": link, "table": create_table_artifact, "markdown": create_markdown_artifact}
    create: Callable[..., Any] = creators[kind]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return create(key=key, description=text, **{kind: content})
        except httpx.HTTPError as error:
            if not isinstance(error, httpx.TransportError) or time.monotonic() > deadline:
                return get_run_logger().warning("%s is not shown: %s", key, error)
        time.sleep(PAUSE_S)


def _best_effort(
    call: Callable[[SyncPrefectClient], Any], client: SyncPrefectClient | None = None
) -> Any:
    """What `call` returns; None where Prefect does not answer."""
    try:
        with nullcontext(client) if client else get_client(sync_client=True) as client:
            return call(client)
    except Exception as error:
        _LOG.debug("Prefect did not answer: %s", error)
        return None
