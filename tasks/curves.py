"""Files that a stage writes while it runs, brought to its run as they grow."""

import json
from pathlib import Path

from tasks.stage_log import StageLog

SECONDS_BETWEEN_POLLS = 2.0


class ShownFiles:
    """Brings pages (.html) and tables (.json, {"columns": […], "data": [[…], …]}) of a folder to a
    run as they appear; a file that changes replaces its earlier self."""

    def __init__(self, log: StageLog, folder: str) -> None:
        self._log, self._folder = log, Path(folder)
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
