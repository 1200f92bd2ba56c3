"""A stage that shows no progress fails with what it was doing; one that moves is left alone."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from klear.tasks.stage.watchdog import Beat, Stalled, watched
from klear.tasks.tracking.prefect_states import CancelledInUI

SHORT = 0.6 / 60  # minutes
LONG = 60.0
NEVER = threading.Event()


def hang() -> None:
    """Without a watchdog: until the test run is ended."""
    while not NEVER.wait(3600):
        pass


def under_watch(work: Callable[[Beat], object], log: Path | None = None) -> None:
    with watched("judge", SHORT, log) as beat:
        work(beat)


def test_a_silent_stage_fails_and_says_where_it_was():
    def work(beat: Beat) -> None:
        beat("7 of 40 AC")
        with suppress(Exception):  # what handles every failure of its own does not handle this
            hang()

    with pytest.raises(Stalled, match=r"judge made no progress for 0\.01 minutes") as stalled:
        under_watch(work)
    for part in ("7 of 40 AC", "NEVER.wait(3600)", "stall_minutes"):
        assert part in str(stalled.value)


def test_the_end_of_the_log_says_more_than_the_code(tmp_path: Path):
    log = tmp_path / "child.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    with pytest.raises(Stalled) as stalled:
        under_watch(lambda _: hang(), log)
    assert str(stalled.value).splitlines()[-20:] == [f"line {n}" for n in range(80, 100)]


@pytest.mark.parametrize(
    ("ends_in", "expected"),
    [
        (OSError("the socket is gone"), Stalled),
        (KeyboardInterrupt(), Stalled),  # what Ray makes of the interrupt
        (CancelledInUI(), CancelledInUI),
    ],
)
def test_a_clean_up_that_hangs_is_interrupted_again_and_hides_no_stall(ends_in, expected):
    reached: list[str] = []

    def work(beat: Beat) -> None:
        beat("step 3")
        try:
            hang()
        finally:
            reached.append("behind the first")
            try:
                hang()
            finally:
                raise ends_in

    with pytest.raises(expected, match=r"last: step 3|cancelled"):
        under_watch(work)
    assert reached == ["behind the first"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CancelledInUI(), OSError("disk full")])
def test_what_the_watchdog_did_not_cause_passes_as_it_is(error: BaseException):
    with pytest.raises(type(error)) as raised, watched("dedup", LONG):
        raise error
    assert raised.value is error


def test_progress_keeps_a_slow_stage_alive():
    patience_s = 2.0
    began = time.monotonic()
    with watched("distill", patience_s / 60) as beat:
        while time.monotonic() - began < 2 * patience_s:
            beat("")
            time.sleep(0.05)


def test_nothing_comes_after_the_block():
    with watched("dedup", SHORT):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
