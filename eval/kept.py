"""Where models that RL kept along the way lie, and in an evaluation what they answered.

Imports nothing heavy: training asks too.
"""

from pathlib import Path

KEPT = "kept"


def kept_model(out: Path, step: int) -> Path:
    """The folder of the model after rollout step `step`."""
    return out / KEPT / f"step-{step:05d}"


def kept_models(out: Path) -> list[tuple[int, Path]]:
    """(rollout step, folder) of all that are whole, in order."""
    folders = sorted(out.glob(f"{KEPT}/step-*[0-9]"))
    return [(int(folder.name.rpartition("-")[2]), folder) for folder in folders]
