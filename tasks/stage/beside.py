"""Runs the stages of a graph, those that do not need each other beside each other.

Each runs in a thread. Only the main thread receives signals, so it waits and interrupts the others:
all when the run ends early, one when it stalls. An interrupt is an exception in the thread, which
comes at its next line of Python: a stage that is inside of one long call by then is left behind. It
ends with the process, and its child with it.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

from klear.tasks.stage.watchdog import Interrupted, stalled
from klear.tasks.store.hardware import cores

POLL_S = 0.5
GRACE_S = 7.0
"""Of the ten seconds that a Cancel may take: a child has some of them to save its work."""
T = TypeVar("T")


@dataclass(frozen=True)
class Node(Generic[T]):
    """One piece of work and the names of those whose results it takes, in order."""

    needs: Sequence[str]
    work: Callable[..., T]


def run_graph(graph: Mapping[str, Node[T]]) -> dict[str, T]:
    """The result of each by name, in the order of `graph`, which must name needs first.

    As many at once as there are cores, the first that is ready first; on the GPU they take turns
    (`tasks/stage/child.py`). After an error nothing starts any more; what is under way ends, so
    that no work is lost, then the error is raised. An interrupt of this thread (Cancel, Ctrl-C)
    interrupts what is under way, and is raised after `GRACE_S` at most.
    """
    made: dict[str, T] = {}
    left = dict(graph)
    running: dict[Future[T], tuple[str, threading.Thread]] = {}
    errors: list[BaseException] = []

    def start(name: str, node: Node[T]) -> None:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(node.work(*(made[n] for n in node.needs)))
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
                made[name] = future.result()

    try:
        while running or (left and not errors):
            for name, node in list(left.items()) if not errors else ():
                if len(running) < cores() and all(need in made for need in node.needs):
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
    return {name: made[name] for name in graph}


def interrupt(thread: threading.Thread) -> None:
    """Raise Interrupted at the next line of Python in the thread."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))
