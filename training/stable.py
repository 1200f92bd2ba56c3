"""Which training checkpoints are whole, and which models RL kept along the way.

Importable without torch: the launcher and the evaluation ask too.
"""

from pathlib import Path

CHECKPOINTS = "checkpoints"
STABLE = "STABLE"
KEPT = "kept"


def latest(folder: Path) -> Path | None:
    """The newest complete training checkpoint below `folder`, or None."""
    found = [p.parent for p in folder.glob(f"checkpoint-*/{STABLE}")]
    return max(found, key=step_of_checkpoint, default=None)


def step_of_checkpoint(checkpoint: Path) -> int:
    """Optimizer updates that it has behind it."""
    return int(checkpoint.name.rpartition("-")[2])


def kept_model(out: Path, step: int) -> Path:
    """Where the model after rollout step `step` is kept."""
    return out / KEPT / f"step-{step:05d}"


def kept_models(out: Path) -> list[tuple[int, Path]]:
    """(rollout step, folder) of the models that were kept, in order."""
    return [
        (step_of_checkpoint(folder), folder) for folder in sorted(out.glob(f"{KEPT}/step-*[0-9]"))
    ]
