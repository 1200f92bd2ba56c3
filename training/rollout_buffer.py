"""What a trainer holds in memory, on disk: a checkpoint after any update resumes exactly.

Between two updates of a rollout that is the rest of the rollout; after any update it is what the
next log line is made of, and the counts of what was skipped.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from training.rollout import MicroBatch, Update


@dataclass
class Buffer:
    """What the trainer holds in memory after an update."""

    slot: int
    """Updates of this rollout that are done; 0: the next thing is a new rollout."""
    updates: list[Update]
    metrics: dict[str, list[float]]
    statistics: dict[str, dict[str, list[float]]]
    losses: list[float]
    grad_norms: list[float]
    counts: dict[str, int]
    """Attributes of the trainer that count what happened since the start of the run."""


def buffer_path(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"rollout_{rank}.pt"


def save_buffer(path: Path, buffer: Buffer) -> None:
    """Plain tensors, numbers and lists only, so that loading runs no code."""
    torch.save({**vars(buffer), "updates": [_plain_update(u) for u in buffer.updates]}, path)


def load_buffer(
    checkpoint: Path, rank: int, world: int, device: torch.device, *, slot: int
) -> Buffer | None:
    """What process `rank` of `world` held after `slot` updates of a rollout.

    None where there is no file and none is needed: another trainer's checkpoint, between two
    rollouts. Raises ValueError where a part of the unfinished rollout would be lost.
    """
    path = buffer_path(checkpoint, rank)
    missing, surplus = not path.exists(), buffer_path(checkpoint, world)
    if slot and (missing or surplus.exists()):
        what = f"{path.name} is missing" if missing else f"{surplus.name} has no process"
        raise ValueError(
            f"{checkpoint} was saved after {slot} updates of a rollout, and the rest of it cannot "
            f"be continued on {world} processes: {what}. Resume with as many processes as saved "
            "it, or from a checkpoint between two rollouts"
        )
    if missing:
        return None
    found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    updates = [
        Update(**{**u, "micro_batches": [MicroBatch(**m) for m in u["micro_batches"]]})
        for u in found.pop("updates")
    ]
    return Buffer(updates=updates, **found)


def _plain_update(update: Update) -> dict[str, Any]:
    micro_batches = [_fields(m) for m in update.micro_batches]
    return {**_fields(update), "micro_batches": micro_batches}


def _fields(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}
