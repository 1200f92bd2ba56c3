"""Stages that do not need each other run beside each other; errors and interrupts lose no work."""

import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from klear.tasks.engine import scheduler
from klear.tasks.engine.scheduler import Node, check_interrupt, run_graph

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "cores", lambda: 2)


def test_no_more_run_than_there_are_cores() -> None:
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()

    run_graph({str(n): Node((), work) for n in range(6)})
    assert max(most) <= 2


def test_one_that_keeps_every_core_busy_waits_for_another_and_holds_up_no_third() -> None:
    other, order = threading.Event(), list[str]()

    def busy(name: str) -> None:
        order.append(f"{name} begins")
        assert other.wait(PATIENCE_S)
        order.append(f"{name} ends")

    busy_ones = {n: Node((), partial(busy, n), every_core=True) for n in ("judge", "judge_rl")}
    run_graph({**busy_ones, "base": Node((), other.set)})
    assert order == ["judge begins", "judge ends", "judge_rl begins", "judge_rl ends"]


def test_after_an_error_what_is_under_way_ends_and_nothing_begins() -> None:
    failed, done = threading.Event(), list[str]()

    def fail() -> None:
        failed.set()
        raise OSError("disk full")

    def finish() -> None:
        assert failed.wait(PATIENCE_S)
        time.sleep(0.2)
        done.append("b")

    later = Node((), lambda: done.append("c"))
    with pytest.raises(OSError, match="disk full"):
        run_graph({"a": Node((), fail), "b": Node((), finish), "c": later})
    assert done == ["b"]


def test_an_interrupt_of_the_main_thread_ends_every_stage_with_its_clean_up() -> None:
    """Those of a graph within the graph too."""
    begun, cleaned = threading.Barrier(3, timeout=PATIENCE_S), list[str]()

    def stage(name: str) -> Callable[[], None]:
        def work() -> None:
            try:
                begun.wait()
                while True:
                    check_interrupt()
                    time.sleep(0.01)
            finally:
                cleaned.append(name)

        return work

    def press() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)  # a shell may ignore SIGINT
    threading.Thread(target=press, daemon=True).start()
    inner = partial(run_graph, {"b": Node((), stage("b"))})
    with pytest.raises(KeyboardInterrupt):
        run_graph({"a": Node((), stage("a")), "cell": Node((), inner)})
    signal.signal(signal.SIGUSR2, before)
    assert sorted(cleaned) == ["a", "b"]
