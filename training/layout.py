"""Where things lie in the folder of a result. Importable without torch: the launcher asks too.

checkpoint/             the model
kept/step-00010/        the model after a rollout step, where a stage keeps models on its way
logs/                   curves, counts and logs; `logs/shown` is for people, the tracker shows it
.resume/                what a killed stage goes on from; deleted once the result is whole
"""

from pathlib import Path

CHECKPOINT = "checkpoint"
TOO_LONG = "too_long.parquet"
ROLLOUTS = "rollouts.parquet"

LOGS = "logs"
METRICS = f"{LOGS}/metrics.jsonl"
HISTOGRAMS = f"{LOGS}/histograms.jsonl"
HISTOGRAM_RANGES = f"{LOGS}/histogram_ranges.json"
OFF_POLICY = f"{LOGS}/off_policy.jsonl"
SHOWN = f"{LOGS}/shown"

SCRATCH = ".resume"
CHECKPOINTS, TOKENS = "checkpoints", "tokens"  # in SCRATCH
PROGRESS = f"{SCRATCH}/progress.json"
RESULT = f"{SCRATCH}/result.json"
ROLLOUT_JOURNAL = f"{SCRATCH}/rollouts.jsonl"
STABLE = "STABLE"
"""The file that marks a training checkpoint as whole."""


def kept_model(out: Path, step: int) -> Path:
    """The folder of the model after rollout step `step`."""
    return out / "kept" / f"step-{step:05d}"


def kept_models(out: Path) -> list[tuple[int, Path]]:
    """(rollout step, folder) of all that are whole, in order."""
    folders = sorted(out.glob("kept/step-*[0-9]"))
    return [(int(folder.name.rpartition("-")[2]), folder) for folder in folders]


def latest(checkpoints: Path) -> Path | None:
    """The newest whole training checkpoint in the folder `checkpoints`, or None."""
    found = [mark.parent for mark in checkpoints.glob(f"checkpoint-*/{STABLE}")]
    return max(found, key=step_of_checkpoint, default=None)


def step_of_checkpoint(checkpoint: Path) -> int:
    """Optimizer updates that it has behind it."""
    return int(checkpoint.name.rpartition("-")[2])
