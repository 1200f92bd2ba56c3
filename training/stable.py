"""Which training checkpoints are whole. Importable without torch: the launcher asks too."""

from pathlib import Path

CHECKPOINTS = "checkpoints"
STABLE = "STABLE"


def latest(folder: Path) -> Path | None:
    """The newest complete training checkpoint below `folder`, or None."""
    found = [p.parent for p in folder.glob(f"checkpoint-*/{STABLE}")]
    return max(found, key=step_of_checkpoint, default=None)


def step_of_checkpoint(checkpoint: Path) -> int:
    """Optimizer updates that it has behind it."""
    return int(checkpoint.name.rpartition("-")[2])
