"""Stages that do not need each other run beside each other; errors and interrupts lose no work.
One that shows no progress fails with what it was doing, and one that moves is left alone."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from klear.tasks.engine import scheduler
from klear.tasks.engine.scheduler import Beat, Node, Stalled, run_graph, stalled, watched

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "cores", lambda: 2)


def hang() -> str:
    while True:
        time.sleep(0.01)


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
    begun, cleaned = threading.Barrier(3, timeout=PATIENCE_S), list[str]()

    def stage(name: str) -> Callable[[], str]:
        def work() -> str:
            try:
                begun.wait()
                return hang()
            finally:
                cleaned.append(name)

        return work

    def press() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)  # a shell may ignore SIGINT
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_graph({name: Node((), stage(name)) for name in "ab"})
    signal.signal(signal.SIGUSR2, before)
    assert sorted(cleaned) == ["a", "b"]


def under_watch(work: Callable[[Beat], object], log: Path | None = None) -> None:
    """Run `work` as a run does a stage."""

    def stage() -> None:
        with watched("judge", 30, log) as beat:
            work(beat)

    run_graph({"judge": Node((), stage)})


def test_a_silent_stage_fails_and_says_where_it_was(silence):
    def work(beat: Beat) -> None:
        beat("7 of 40 AC")
        with suppress(Exception):  # what handles every failure of its own does not handle this
            threading.Timer(0.1, silence).start()
            hang()

    with pytest.raises(Stalled, match=r"judge made no progress for 30 minutes") as failed:
        under_watch(work)
    for part in ("7 of 40 AC", "time.sleep(0.01)", "stall_minutes"):
        assert part in str(failed.value)


def test_the_end_of_the_log_says_more_than_the_code(tmp_path: Path, silence):
    log = tmp_path / "child.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    with pytest.raises(Stalled) as failed:
        under_watch(lambda _: (silence(), hang()), log)
    assert str(failed.value).splitlines()[-20:] == [f"line {n}" for n in range(80, 100)]


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "clean_up",
    [
        lambda: fail(OSError("the socket is gone")),
        lambda: fail(KeyboardInterrupt()),  # what Ray makes of the interrupt
        hang,
        threading.Event().wait,  # which nothing interrupts
    ],
)
def test_a_clean_up_that_fails_or_hangs_hides_no_stall(clean_up, monkeypatch, silence):
    monkeypatch.setattr(scheduler, "GRACE_S", 0.5)

    def work(beat: Beat) -> None:
        beat("step 3")
        try:
            silence()
            hang()
        finally:
            clean_up()

    with pytest.raises(Stalled, match=r"last: step 3"):
        under_watch(work)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
def test_what_the_watchdog_did_not_cause_passes_as_it_is(error: BaseException):
    with pytest.raises(type(error)) as raised:
        under_watch(lambda _: fail(error))
    assert raised.value is error


def test_progress_keeps_a_slow_stage_alive(silence):
    me = threading.get_ident()
    with watched("judge", 90) as beat:
        for _ in range(3):
            silence()
            assert stalled(me) is None
            beat("")
        silence()
        silence()
        assert stalled(me) is not None
