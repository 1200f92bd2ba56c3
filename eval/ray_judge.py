"""Judge workers as actors of a Ray cluster: one per CPU, each with a sandbox of its own.

An actor holds what the local judge starts: small processes that kill late work and end with it. The
thread here keeps every actor busy and no more than that, with calls of a few tasks, so that what is
on its way stays small whatever waits. Work that is lost with a node is done again elsewhere, alone,
and is unscored after some losses: the program may be what kills. While no actor runs, for want of
a free CPU, whoever waits for an answer is told so (`eval.ray_cluster.told_of_waiting`).
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from eval.judge_pool import Kind, NoVerdict, Pool, PoolDied, WorkerPool
from eval.ray_cluster import POLL_S, code_digest, cores, join, same_code, tell_of_waiting
from eval.ray_suites import Sent, SharedSuites, payload_of
from eval.sandbox_errors import MachineUnfit

_ATTEMPTS = 3
_CALLS_AHEAD = 2
_TASKS_A_CALL, _BYTES_A_CALL = 8, 4 << 20
_WAITING_S = 60.0
_LOG = logging.getLogger(__name__)

Results = list[tuple[bool, Any]]


class _Worker:
    """The actor."""

    def __init__(self) -> None:
        self._pools: dict[Kind, WorkerPool] = {
            "math": WorkerPool("math", 1),
            "code": WorkerPool("code", 1),
        }

    def ready(self, code: str) -> None:
        same_code(code)

    def run(self, tasks: list[tuple[Kind, float, Sent]]) -> Results:
        """(True, result) or (False, error) of each task, in order."""
        begun = [self._pools[k].submit(limit, payload_of(sent)) for k, limit, sent in tasks]
        return [
            (True, future.result()) if (error := future.exception()) is None else (False, error)
            for future in begun
        ]


class _Answer(Future[Any]):
    """Calls `waiting` every few seconds, in the thread that waits for it."""

    def __init__(self, waiting: Callable[[], None]) -> None:
        super().__init__()
        self._waiting = waiting

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(timeout)

    def _wait(self, timeout: float | None) -> None:
        while timeout is None and not wait([self], POLL_S).done:
            self._waiting()


@dataclass(eq=False)
class _Task:
    kind: Kind
    limit: float
    sent: Sent
    future: _Answer
    losses: int = 0


class _Done(NamedTuple):
    """What happened to a call; without tasks it asked whether the actor is ready."""

    actor: Any
    tasks: list[_Task]
    answer: "Future[Any]"


class RayWorkers:
    """The actors behind both pools of a judge, started at the first task. Thread-safe."""

    def __init__(self, address: str, workers: int) -> None:
        self._ray = join(address)
        self.workers = workers or cores(self._ray)
        self.suites = SharedSuites(self._ray)
        self._events: queue.SimpleQueue[_Task | _Done | None] = queue.SimpleQueue()
        self._waiting: deque[_Task] = deque()
        self._unfinished: set[_Task] = set()
        self._calls: dict[Any, int] = {}
        """Of each actor that is ready: how many calls it has."""
        self._starting = 0
        self._actors: list[Any] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._unfit: MachineUnfit | None = None
        self._open = 2

    def pools(self) -> tuple[Pool, Pool]:
        return RayPool(self, "math"), RayPool(self, "code")

    def submit(self, kind: Kind, deadline_s: float, payload: bytes) -> "Future[Any]":
        """The future of `run(*pickle.loads(payload))` of that kind, as of `WorkerPool`.

        Waits while too many large suites are under way. Raises MachineUnfit once a node turned out
        to run other code.
        """
        with self._lock:
            self._check_open()
            if self._thread is None:
                self._start()
        sent = self.suites.send(payload, self._wait_for_room)
        task = _Task(kind, deadline_s, sent, _Answer(self._tell_if_starved))
        with self._lock:  # it may have been closed meanwhile, and then nobody would answer
            try:
                self._check_open()
            except BaseException:
                self.suites.release(sent)
                raise
            self._events.put(task)
        return task.future

    def _wait_for_room(self) -> None:
        with self._lock:
            self._check_open()
        self._tell_if_starved()

    def _check_open(self) -> None:
        if self._unfit is not None:
            raise self._unfit
        if not self._open:
            raise PoolDied("the judge was closed")

    def _tell_if_starved(self) -> None:
        if not self._calls:
            tell_of_waiting(self._ray)

    def _start(self) -> None:
        options = self._ray.remote(_Worker).options(
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_CALLS_AHEAD,
            scheduling_strategy="SPREAD",
        )
        self._actors = [options.remote() for _ in range(self.workers)]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for actor in self._actors:
            self._ask_ready(actor)
        while True:
            try:
                event = self._events.get(timeout=_WAITING_S)
            except queue.Empty:
                if self._waiting and not self._calls:
                    _LOG.warning("%d answers wait for a free CPU of Ray", len(self._waiting))
                continue
            if event is None:
                return self._fail_all(PoolDied("the judge was closed"))
            try:
                self._handle(event)
            except Exception as error:  # of Ray: nobody may wait for ever
                self._give_up(MachineUnfit(f"the Ray cluster fails: {error!r}"))

    def _handle(self, event: "_Task | _Done") -> None:
        if isinstance(event, _Done):
            self._take(event)
        else:
            self._unfinished.add(event)
            self._waiting.append(event)
            if self._unfit is not None:
                self._fail_all(self._unfit)
        if self._events.empty():
            self._hand_out()

    def _ask_ready(self, actor: Any) -> None:
        """Answered once the actor runs: now, or when there is a CPU for it (again)."""
        self._starting += 1
        self._await(actor, [], actor.ready.options(max_task_retries=-1).remote(code_digest()))

    def _await(self, actor: Any, tasks: list[_Task], call: Any) -> None:
        call.future().add_done_callback(lambda f: self._events.put(_Done(actor, tasks, f)))

    def _hand_out(self) -> None:
        """Give the least busy actors calls until all have enough."""
        while self._waiting and self._calls:
            actor = min(self._calls, key=self._calls.__getitem__)
            if self._calls[actor] == _CALLS_AHEAD:
                return
            self._calls[actor] += 1
            tasks = self._next_tasks()
            self._await(actor, tasks, actor.run.remote([(t.kind, t.limit, t.sent) for t in tasks]))

    def _next_tasks(self) -> list[_Task]:
        fair = -(-len(self._waiting) // (_CALLS_AHEAD * len(self._calls)))
        tasks, size = [self._waiting.popleft()], 0
        while self._waiting and len(tasks) < min(fair, _TASKS_A_CALL) and not tasks[0].losses:
            size += len(self._waiting[0].sent.payload)
            if size > _BYTES_A_CALL or self._waiting[0].losses:
                break
            tasks.append(self._waiting.popleft())
        return tasks

    def _take(self, done: _Done) -> None:
        error = done.answer.exception()
        if not done.tasks:
            self._started(done.actor, error)
        elif error is not None:
            self._lost(done, error)
        else:
            if self._calls.get(done.actor):
                self._calls[done.actor] -= 1
            for task, (is_result, value) in zip(done.tasks, done.answer.result(), strict=True):
                self._finish(task, is_result, value)

    def _finish(self, task: _Task, is_result: bool, value: Any) -> None:
        if task in self._unfinished:
            self._unfinished.remove(task)
            self.suites.release(task.sent)
            task.future.set_result(value) if is_result else task.future.set_exception(value)

    def _started(self, actor: Any, error: BaseException | None) -> None:
        self._starting -= 1
        cause = getattr(error, "cause", None)
        if error is None:
            self._calls[actor] = 0
        elif isinstance(cause, MachineUnfit):
            self._give_up(cause)
        elif not self._calls and not self._starting:
            self._give_up(MachineUnfit(f"no judge worker starts on the Ray cluster: {error}"))

    def _lost(self, done: _Done, error: BaseException) -> None:
        """The actor died and restarts where there is room; its work goes to others meanwhile."""
        if self._calls.pop(done.actor, None) is not None:
            self._ask_ready(done.actor)
            _LOG.warning("a judge worker was lost (%s): others go on", type(error).__name__)
        for task in reversed(done.tasks):
            task.losses += 1
            if task.losses == _ATTEMPTS:
                reason = f"lost with its worker {_ATTEMPTS} times: {type(error).__name__}"
                self._finish(task, False, NoVerdict(reason))
            elif task in self._unfinished:
                self._waiting.appendleft(task)

    def _give_up(self, error: MachineUnfit) -> None:
        self._unfit = error
        self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        self._waiting.clear()
        for task in list(self._unfinished):
            self._finish(task, False, error)

    def close(self) -> None:
        """Once both pools are closed, end the actors, whatever they are doing."""
        with self._lock:
            self._open -= 1
            if self._open or self._thread is None:
                return
            self._events.put(None)
            self._thread.join()
            for actor in self._actors:
                with suppress(Exception):  # dead, or its node is
                    self._ray.kill(actor)
            self.suites.clear()


class RayPool:
    """The workers as seen by one kind of work."""

    def __init__(self, workers: RayWorkers, kind: Kind) -> None:
        self.shared = workers
        self.kind: Kind = kind

    @property
    def workers(self) -> int:
        return self.shared.workers

    def submit(self, deadline_s: float, payload: bytes) -> "Future[Any]":
        return self.shared.submit(self.kind, deadline_s, payload)

    def close(self) -> None:
        self.shared.close()
