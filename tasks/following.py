"""Following a stage while it computes: curves, pages, tables, the load of the machine."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from configs.evaluate_stage import LEARNING_CURVE
from tasks.curves import SECONDS_BETWEEN_POLLS, CurveTail, ShownFiles
from tasks.machine_load import FILE, MARKER, MachineLoad
from tasks.stage_log import STEP_METRIC, StageLog

CURVES = "logs/metrics.jsonl"
LEARNING_STEP = "rollout_step"  # marks its points, for other curves of a stage count other things


@contextmanager
def following(log: StageLog, work: Path) -> Iterator[Callable[[], None]]:
    """Call what it yields as often as you like; whatever ends the block, the rest is told then."""
    curves = CurveTail(log, work / CURVES, STEP_METRIC)
    shown = ShownFiles(log, "logs/shown")
    learning = CurveTail(log, work / LEARNING_CURVE, LEARNING_STEP)
    load = CurveTail(log, work / FILE, MARKER)
    due = 0.0

    def poll() -> None:
        curves.poll()
        learning.poll()
        shown.poll()

    def now_and_then() -> None:
        nonlocal due
        if time.monotonic() >= due:
            poll()
            due = time.monotonic() + SECONDS_BETWEEN_POLLS

    with ExitStack() as stack:
        if log.tracker.uri:  # without a server nobody looks
            stack.callback(poll)
            stack.enter_context(MachineLoad(work / FILE, after=load.poll))
        yield now_and_then


def tell_files(log: StageLog, folder: Path) -> None:
    """Everything that `following` would have told of a stage that is done."""
    CurveTail(log, folder / CURVES, STEP_METRIC).poll()
    CurveTail(log, folder / LEARNING_CURVE, LEARNING_STEP).poll()
    CurveTail(log, folder / FILE, MARKER).poll()
    ShownFiles(log, "logs/shown").poll()


def curve_names(folder: Path) -> set[str]:
    """The metrics that a finished stage drew as curves."""
    paths = [folder / CURVES, folder / LEARNING_CURVE]
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return set().union(*(json.loads(line)["metrics"] for line in lines))
