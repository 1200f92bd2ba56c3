"""Following a stage while it computes: curves, pages, tables, the load of the machine."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from configs.settings.evaluation import LEARNING_CURVE
from tasks.tracking.machine_load import FILE, MARKER, MachineLoad
from tasks.tracking.run_tracker import STEP_METRIC, StageLog

SECONDS_BETWEEN_POLLS = 2.0
CURVES = "logs/metrics.jsonl"
LEARNING_STEP = "rollout_step"  # marks its points, for other curves of a stage count other things


class ShownFiles:
    """Brings pages (.html) and tables (.json, {"columns": […], "data": [[…], …]}) of `logs/shown`
    to a run as they appear; a file that changes replaces its earlier self."""

    def __init__(self, log: StageLog) -> None:
        self._log, self._folder = log, Path("logs/shown")
        self._seen: dict[Path, int] = {}

    def poll(self) -> None:
        root = self._log.work / self._folder
        files = sorted(p for p in root.rglob("*") if p.suffix in (".html", ".json"))
        tables = [str(p.relative_to(root)) for p in files if p.suffix == ".json"]
        for path in files:
            stamp = path.stat().st_mtime_ns
            if self._seen.get(path) != stamp:
                self._log.show(self._folder, path.relative_to(root), tables)
                self._seen[path] = stamp


class CurveTail:
    """Follows a file of lines {"step", "time", "metrics"} that another process writes.

    Each step is told exactly once, whatever is killed and resumed: `marker` is the metric whose
    history says what is there.
    """

    def __init__(self, log: StageLog, path: Path, marker: str) -> None:
        self._log, self._path, self._marker = log, path, marker
        self._offset = 0

    def poll(self) -> None:
        """Tell the lines that came since the last poll; a torn last line waits for its end."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._offset:
            self._offset = 0  # a resumed child cut the lines after its checkpoint
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = [json.loads(line) for line in complete.splitlines() if line.strip()]
        if lines:
            self._log.steps(lines, self._marker)


def log_files_of(log: StageLog, folder: Path) -> Callable[[], None]:
    """Tell what the files in a stage's folder say up to now; call the result to tell the rest."""
    curves = CurveTail(log, folder / CURVES, STEP_METRIC)
    learning = CurveTail(log, folder / LEARNING_CURVE, LEARNING_STEP)
    load = CurveTail(log, folder / FILE, MARKER)
    shown = ShownFiles(log)

    def poll() -> None:
        for file in (curves, learning, load, shown):
            file.poll()

    poll()
    return poll


@contextmanager
def stream_logs(log: StageLog, work: Path) -> Iterator[Callable[[], None]]:
    """Call what it yields as often as you like; whatever ends the block, the rest is told then."""
    if not log.tracker.uri:  # without a server nobody looks
        yield lambda: None
        return
    due = time.monotonic() + SECONDS_BETWEEN_POLLS
    with ExitStack() as stack:
        poll = log_files_of(log, work)
        stack.callback(poll)
        stack.enter_context(MachineLoad(work / FILE))

        def now_and_then() -> None:
            nonlocal due
            if time.monotonic() >= due:
                poll()
                due = time.monotonic() + SECONDS_BETWEEN_POLLS

        yield now_and_then


def curve_names(folder: Path) -> set[str]:
    """The metrics that a finished stage drew as curves."""
    paths = [folder / CURVES, folder / LEARNING_CURVE]
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return set().union(*(json.loads(line)["metrics"] for line in lines))
