"""Runs the stages of a graph, those that do not need each other beside each other, and watches
each: no progress for some minutes fails it, with what it was doing.

Each runs in a thread. Only the main thread receives signals, so it waits and interrupts the others:
all when the run ends early, one when it stalls. An interrupt is an exception in the thread, which
comes at its next line of Python: a stage that is inside of one long call by then is left behind. It
ends with the process, and its child with it.
"""

import ctypes
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..store.hardware import cores

POLL_S = 0.5
GRACE_S = 7.0
"""Of the ten seconds that a Cancel may take: a child has some of them to save its work."""
TAIL_LINES = 20
FRAMES = 6
Beat = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Node(Generic[T]):
    """One piece of work and the names of those whose results it takes, in order. One that keeps
    `every_core` busy starts when no other such is under way."""

    needs: Sequence[str]
    work: Callable[..., T]
    every_core: bool = False


def run_graph(graph: Mapping[str, Node[T]], at_once: int = 0) -> dict[str, T]:
    """The result of each by name, in the order of `graph`, which must name needs first.

    `at_once` beside each other (0: one a core), the first that is ready first; on the GPU they take
    turns (`tasks/engine/child.py`). After an error nothing starts any more; what is under way ends,
    so that no work is lost, then the error is raised. An interrupt of this thread (Cancel, Ctrl-C)
    interrupts what is under way, and is raised after `GRACE_S` at most.
    """
    results: dict[str, T] = {}
    left = dict(graph)
    running: dict[Future[T], tuple[str, threading.Thread]] = {}
    errors: list[BaseException] = []

    def may_start(node: Node[T]) -> bool:
        taken = node.every_core and any(graph[name].every_core for name, _ in running.values())
        free = len(running) < (at_once or cores()) and not taken
        return free and all(need in results for need in node.needs)

    def start(name: str, node: Node[T]) -> None:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(node.work(*(results[n] for n in node.needs)))
            except BaseException as error:
                future.set_exception(error)

        run = copy_context().run
        thread = threading.Thread(target=run, args=(work,), name=name, daemon=True)
        running[future] = name, thread
        thread.start()

    def collect(seconds: float) -> None:
        """Those that end, once one does or the time is over."""
        for future in wait(running, seconds, FIRST_COMPLETED).done:
            name, _ = running.pop(future)
            if error := future.exception():
                errors.append(error)
            else:
                results[name] = future.result()

    try:
        while running or (left and not errors):
            for name, node in list(left.items()) if not errors else ():
                if may_start(node):
                    start(name, left.pop(name))
            collect(POLL_S)
            for future, (_, thread) in list(running.items()):
                if error := stalled(thread.ident or 0):
                    interrupt(thread)
                    thread.join(GRACE_S)
                    if thread.is_alive():  # in a call that never returns
                        errors.append(error)
                        del running[future]
    except BaseException:
        for _, thread in running.values():
            interrupt(thread)
        deadline = time.monotonic() + GRACE_S
        while running and time.monotonic() < deadline:
            collect(deadline - time.monotonic())
        raise
    if errors:
        raise errors[0]
    return {name: results[name] for name in graph}


def interrupt(thread: threading.Thread) -> None:
    """Raise Interrupted at the next line of Python in the thread."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


class Interrupted(KeyboardInterrupt):
    """Raised in the thread of a stage: it stalled, or the run ends. No `except Exception` takes it
    for a failure of its own, and Ray passes on no other kind."""


@dataclass
class _Watch:
    """One stage under watch."""

    stage: str
    minutes: float
    log: Path | None
    note: str = ""
    due: float = math.inf
    error: Stalled | None = None

    def beat(self, note: str) -> None:
        self.note, self.due = note, time.monotonic() + self.minutes * 60


_watches: dict[int, _Watch] = {}  # by thread


@contextmanager
def watched(stage: str, minutes: float, log: Path | None = None) -> Iterator[Beat]:
    """Fail the block as Stalled, with the end of `log`, unless called every so many minutes."""
    thread = threading.get_ident()
    watch = _watches[thread] = _Watch(stage, minutes, log)
    watch.beat("")
    try:
        yield watch.beat
    except (Exception, KeyboardInterrupt) as error:  # also what cleaning up raised
        if watch.error:
            raise watch.error from error
        raise
    finally:
        del _watches[thread]


def stalled(thread: int) -> Stalled | None:
    """The error of the stage in this thread, where it has made no progress for too long: with the
    end of its log, and without one the lines of code that it is at."""
    watch = _watches.get(thread)
    if watch is None or time.monotonic() < watch.due:
        return None
    if watch.log and watch.log.exists() and watch.log.stat().st_size:
        evidence = log_tail(watch.log)
    else:
        stack = traceback.format_stack(sys._current_frames().get(thread))[-FRAMES:]
        evidence = "".join(["; it was at:\n", *stack]).rstrip()
    watch.error = Stalled(
        f"{watch.stage} made no progress for {watch.minutes:g} minutes "
        f"(last: {watch.note or 'nothing'}), so it was ended. "
        f"A slow stage needs a larger stall_minutes{evidence}"
    )
    return watch.error


def log_tail(log: Path, start: int = 0) -> str:
    """The end of an error message: where the log is, and its last lines after byte `start`."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 65_536))
        lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    return "\n".join([f"; the log is {log}, its last lines:", *lines]) if lines else f"; see {log}"
