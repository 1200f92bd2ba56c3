"""What a training process tells its parent: metrics.jsonl and progress.json under `out`.

The child knows neither Prefect nor MLflow; the parent tails both files. A metrics line is
`{"step": int, "time": float, "metrics": {name: number}}`; progress is
`{"done": int, "total": int, "note": str}`, replaced atomically at most twice a second.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRESS_INTERVAL_S = 0.5


class StepLines:
    """JSON lines with a step each; a resumed run first drops what came after its start."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        self.path = path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # a line cut by a kill is no line
        kept = [line + "\n" for line in lines if line and json.loads(line)["step"] <= after_step]
        _replace(path, path.with_suffix(".partial"), "".join(kept))

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class MetricsFile(StepLines):
    """`out/logs/metrics.jsonl`."""

    def __init__(self, out: Path, *, after_step: int = 0) -> None:
        super().__init__(out / "logs" / "metrics.jsonl", after_step=after_step)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line; what is not finite is left out, for JSON has no name for it."""
        finite = {k: v for k, v in metrics.items() if math.isfinite(v)}
        self.write({"step": step, "time": time.time(), "metrics": finite})


class ProgressFile:
    """Rewrites `out/.resume/progress.json`."""

    def __init__(self, out: Path) -> None:
        self.path = out / ".resume" / "progress.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._last = 0.0

    def report(self, done: int, total: int, note: str = "") -> None:
        """Cheap: writes at most every half second, and always at the end."""
        now = time.monotonic()
        if done < total and now - self._last < PROGRESS_INTERVAL_S:
            return
        self._last = now
        partial = self.path.with_suffix(f".{os.getpid()}.partial")  # others may report too
        _replace(self.path, partial, json.dumps({"done": done, "total": total, "note": note}))

    def note(self, note: str) -> None:
        """A sign of life beside the progress that is known, whichever process reported it."""
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.report(known.get("done", 0), known.get("total", 0), note)


def _replace(path: Path, partial: Path, text: str) -> None:
    partial.write_text(text)
    os.replace(partial, path)
