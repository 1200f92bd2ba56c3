"""Runs the stages of a graph, those that do not need each other beside each other.

Each has a thread, which waits for the process of its stage. Only the main thread receives signals;
when the run ends early it tells the threads, and each ends its process. Nothing is raised in a
thread from outside: whatever waits there looks (`check_interrupt`).
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..store.hardware import cores

POLL_S = 0.2
GRACE_S = 8.0
"""Of the ten seconds that a Cancel may take: a stage has most of them to save its work."""
T = TypeVar("T")


@dataclass(frozen=True)
class _Graph:
    """What its threads look at."""

    ending: threading.Event
    failed: threading.Event


_graph: ContextVar[_Graph | None] = ContextVar("graph", default=None)


class Interrupted(KeyboardInterrupt):
    """The run ends early, and this stage with it. No `except Exception` takes it for a failure of
    its own, and Ray passes on no other kind."""


def check_interrupt(*, waiting: bool = False) -> None:
    """Raise Interrupted once the run that this thread works for ends early; where it is `waiting`
    for somebody else's work, also once another node of its graph has failed."""
    graph = _graph.get()
    if graph and (graph.ending.is_set() or (waiting and graph.failed.is_set())):
        raise Interrupted


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
    running: dict[Future[T], str] = {}
    errors: list[BaseException] = []
    events = _Graph(ending=threading.Event(), failed=threading.Event())

    def may_start(node: Node[T]) -> bool:
        taken = node.every_core and any(graph[name].every_core for name in running.values())
        free = len(running) < (at_once or cores()) and not taken
        return free and all(need in results for need in node.needs)

    def start(name: str, node: Node[T]) -> None:
        future: Future[T] = Future()

        def work() -> None:
            _graph.set(events)
            try:
                future.set_result(node.work(*(results[n] for n in node.needs)))
            except BaseException as error:
                future.set_exception(error)

        running[future] = name
        context = copy_context()
        threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()

    def collect(seconds: float) -> None:
        """Those that end, once one does or the time is over."""
        for future in wait(running, seconds, FIRST_COMPLETED).done:
            name = running.pop(future)
            if error := future.exception():
                errors.append(error)
                events.failed.set()
            else:
                results[name] = future.result()

    try:
        while running or (left and not errors):
            for name, node in list(left.items()) if not errors else ():
                if may_start(node):
                    start(name, left.pop(name))
            collect(POLL_S)
            check_interrupt()  # of the graph that this one is a node of
    except BaseException:
        events.ending.set()
        deadline = time.monotonic() + GRACE_S
        while running and time.monotonic() < deadline:
            collect(deadline - time.monotonic())
        raise
    if errors:
        raise errors[0]
    return {name: results[name] for name in graph}
