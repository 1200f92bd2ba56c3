"""Runs the stages of a graph, those that do not need each other beside each other.

Each runs in a thread. Only the main thread receives signals, so it waits and interrupts the others:
all when the run ends early, one when it stalls. An interrupt is an exception in the thread, which
comes at its next line of Python: a stage that is inside of one long call by then is left behind. It
ends with the process, and its child with it.
"""

import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from klear.tasks.stage.watchdog import Interrupted, stalled

POLL_S = 0.5
GRACE_S = (
    7.0  # of the ten seconds that a Cancel may take: a child has some of them to save its work
)
T = TypeVar("T")


@dataclass(frozen=True)
class Node(Generic[T]):
    """One piece of work and the names of those whose results it takes, in order."""

    needs: Sequence[str]
    work: Callable[..., T]


def at_once() -> int:
    """How many stages compute beside each other: one for each core of this process. On the GPU
    they take turns (`tasks/stage/child.py`)."""
    return len(os.sched_getaffinity(0))


def run_graph(graph: Mapping[str, Node[T]]) -> dict[str, T]:
    """The result of each by name, in the order of `graph`, which must name needs first.

    The first that is ready starts first. After an error nothing starts any more; what is under way
    ends, so that no work is lost, then the error is raised. An interrupt of this thread (Cancel,
    Ctrl-C) interrupts what is under way, and is raised after `GRACE_S` at most.
    """
    made: dict[str, T] = {}
    left = dict(graph)
    running: dict[str, threading.Thread] = {}
    ended: queue.SimpleQueue[tuple[str, Any, BaseException | None]] = queue.SimpleQueue()
    errors: list[BaseException] = []

    def work(name: str, node: Node[T]) -> None:
        try:
            ended.put((name, node.work(*(made[n] for n in node.needs)), None))
        except BaseException as error:
            ended.put((name, None, error))

    def collect(seconds: float) -> None:
        """The end of one, if one ends within the time."""
        try:
            name, result, error = ended.get(timeout=seconds)
        except queue.Empty:
            return
        if running.pop(name, None) is None:
            return  # it had been given up
        if error is None:
            made[name] = result
        else:
            errors.append(error)

    limit = at_once()
    try:
        while running or (left and not errors):
            ready = [n for n, node in left.items() if all(need in made for need in node.needs)]
            for name in ready if not errors else ():
                if len(running) < limit:
                    run = copy_context().run
                    thread = threading.Thread(
                        target=run, args=(work, name, left.pop(name)), name=name, daemon=True
                    )
                    running[name] = thread
                    thread.start()
            collect(POLL_S)
            for name, thread in list(running.items()):
                if error := stalled(thread.ident or 0):
                    interrupt(thread)
                    thread.join(GRACE_S)
                    if thread.is_alive():  # in a call that never returns
                        errors.append(error)
                        del running[name]
    except BaseException:
        for thread in running.values():
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
