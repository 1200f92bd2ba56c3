"""Moments of a stage: it is running, and a share of it is behind it."""

import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from home import PATIENCE_S
from miniature import Attempt, Place

POLL_S = 0.004  # some stages take hundredths of a second


class Met(NamedTuple):
    how: Literal["running", "over", "ended"]
    since: float
    """When the stage began in this attempt, Unix seconds; 0: it did not."""


def is_running(attempt: Attempt, stage: str) -> bool:
    """Whether this attempt has begun to compute it (one that is cached never begins)."""
    begun = rf"^  {stage} +(?!waiting|another)\S|- {stage}: computing \("
    return re.search(begun, attempt.text(), re.MULTILINE) is not None


def is_over(attempt: Attempt, stage: str) -> bool:
    over = rf"^[✓=✗] {stage} |- {stage}: (computed|cached|failed) "
    return re.search(over, attempt.text(), re.MULTILINE) is not None


def seconds_of(attempt: Attempt, stage: str, unless: float) -> float:
    """How long it took in this attempt."""
    said = re.search(rf"^✓ {stage} +([\d.]+) s", attempt.text(), re.MULTILINE)
    return float(said[1]) if said else unless


def has_ended(place: Place, attempt: Attempt) -> bool:
    if attempt.process is not None:
        return attempt.process.poll() is not None
    return place.has_ended(attempt.flow_run)


def reach(
    place: Place, attempt: Attempt, stage: str, share: float, seconds: float, by_progress: bool
) -> Met:
    """Wait until `share` of the stage is done: of `seconds`, or of what it says of its progress."""
    deadline = time.monotonic() + PATIENCE_S
    since: float | None = None
    looks = 0
    while time.monotonic() < deadline:
        if since is None and is_running(attempt, stage):
            since = time.time()
        if since is not None:
            by_clock = time.time() - since >= share * seconds
            if (by_progress and _progress(place, attempt, stage) >= share) or (
                by_clock and not by_progress
            ):
                how = "over" if is_over(attempt, stage) else "running"
                return Met(how, since)
        looks += 1
        if looks % 16 == 0:
            if is_over(attempt, stage):
                return Met("over", since or 0.0)
            if has_ended(place, attempt):
                return Met("ended", since or 0.0)
        time.sleep(POLL_S)
    raise AssertionError(f"{stage} did not begin; the run says:\n{attempt.text()[-2000:]}")


def _progress(place: Place, attempt: Attempt, stage: str) -> float:
    """What the stage's child says: 0 to 1, 0 before its first word in this attempt."""
    for file in place.store.glob(f".work/{stage}/*/.resume/progress.json"):
        with suppress(OSError, ValueError, KeyError):
            if file.stat().st_mtime >= attempt.began:
                said = json.loads(file.read_text())
                return float(said["done"]) / max(float(said["total"]), 1e-9)
    return 0.0


def kept(place: Place, stage: str) -> tuple[str, float | None]:
    """What a retry will find, in words, and when the last of it was written (Unix seconds)."""
    names, latest = [], None
    for scratch in place.store.glob(f".work/{stage}/*/.resume"):
        checkpoints = sorted(scratch.glob("checkpoints/checkpoint-*"), key=_number)
        parts = [p for p in scratch.rglob("*") if re.fullmatch(r"\d{5}", p.name)]
        journals = list(scratch.rglob("*.jsonl"))
        names += [checkpoints[-1].name] if checkpoints else []
        names += [f"{len(parts)} parts"] if parts else []
        names += [f"{_lines(j)} lines" for j in journals if _lines(j)]
        stamps = [_written(p) for p in (*checkpoints[-1:], *parts, *journals)]
        latest = max([t for t in (*stamps, latest) if t], default=None)
    return ", ".join(names), latest


def _number(checkpoint: Path) -> int:
    return int(re.sub(r"\D", "", checkpoint.name) or 0)


def _lines(path: Path) -> int:
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def _written(path: Path) -> float | None:
    with suppress(OSError):
        return path.stat().st_mtime
    return None
