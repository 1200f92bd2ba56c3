"""A stage that shows no progress fails with what it was doing; one that moves is left alone."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from klear.tasks.stage import graph
from klear.tasks.stage.graph import Beat, Node, Stalled, run_graph, watched

SHORT = 0.6 / 60  # minutes


def hang() -> None:
    while True:
        time.sleep(0.01)


def under_watch(
    work: Callable[[Beat], object], log: Path | None = None, minutes: float = SHORT
) -> None:
    """Run `work` as a run does a stage."""

    def stage() -> None:
        with watched("judge", minutes, log) as beat:
            work(beat)

    run_graph({"judge": Node((), stage)})


def test_a_silent_stage_fails_and_says_where_it_was():
    def work(beat: Beat) -> None:
        beat("7 of 40 AC")
        with suppress(Exception):  # what handles every failure of its own does not handle this
            hang()

    with pytest.raises(Stalled, match=r"judge made no progress for 0\.01 minutes") as stalled:
        under_watch(work)
    for part in ("7 of 40 AC", "time.sleep(0.01)", "stall_minutes"):
        assert part in str(stalled.value)


def test_the_end_of_the_log_says_more_than_the_code(tmp_path: Path):
    log = tmp_path / "child.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    with pytest.raises(Stalled) as stalled:
        under_watch(lambda _: hang(), log)
    assert str(stalled.value).splitlines()[-20:] == [f"line {n}" for n in range(80, 100)]


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
def test_a_clean_up_that_fails_or_hangs_hides_no_stall(clean_up, monkeypatch):
    monkeypatch.setattr(graph, "GRACE_S", 0.5)

    def work(beat: Beat) -> None:
        beat("step 3")
        try:
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


def test_progress_keeps_a_slow_stage_alive():
    patience_s = 2.0
    began = time.monotonic()

    def work(beat: Beat) -> None:
        while time.monotonic() - began < 2 * patience_s:
            beat("")
            time.sleep(0.05)

    under_watch(work, minutes=patience_s / 60)
