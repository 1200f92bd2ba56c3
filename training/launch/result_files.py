"""The folder of a result, and the files in it by which a training process speaks to its parent.

checkpoint/             the model
kept/step-00010/        the model after a rollout step, where a stage keeps models on its way
logs/                   curves, counts and logs; `logs/shown` is for people, the tracker shows it
.resume/                what a killed stage goes on from; deleted once the result is whole

A killed SFT or RL stage goes on from the newest `.resume/checkpoints/checkpoint-N` with the mark
STABLE. `logs/*.jsonl` and `.resume/rollouts.jsonl` are cut back to its step. The child knows no
Prefect and no MLflow; its parent, without torch, tails metrics and progress.
"""

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...configs.files import replace_text

CHECKPOINT = "checkpoint"
CHAT_FILE = "chat_format.json"
"""In a checkpoint: `chat_template_kwargs`, and of a trained one `question`, around {prompt}."""
TRAINED_QUESTION = "{prompt}"  # SFT and RL ask the bare problem
ROLLOUTS = "rollouts.parquet"
KEPT, REJECTED = "kept.parquet", "rejected.parquet"
"""What a stage that selects rows hands on, and what it leaves out, with the reasons."""
SAMPLES, SCORES = "samples.parquet", "scores.parquet"

LOGS = "logs"
METRICS = f"{LOGS}/metrics.jsonl"
NO_LESSON = f"{LOGS}/no_lesson.txt"  # why RL learned nothing, with an answer
OFF_POLICY = f"{LOGS}/off_policy.jsonl"
SHOWN = f"{LOGS}/shown"  # tables for people

SCRATCH = ".resume"
CHECKPOINTS, TOKENS = "checkpoints", "tokens"  # in SCRATCH
PROGRESS = f"{SCRATCH}/progress.json"
RESULT = f"{SCRATCH}/result.json"
ROLLOUT_JOURNAL = f"{SCRATCH}/rollouts.jsonl"
STABLE = "STABLE"  # the file that marks a training checkpoint as whole
ALARM = "alarm/"  # how the metrics begin that a log line has where an alarm rings: its step
NON_FINITE = "non_finite_metrics"  # how many numbers of a line were NaN or infinite
STOPPED = 75  # exit code of a training process that saved a checkpoint because it got SIGTERM

PROGRESS_INTERVAL_S = 0.5


def chat_file(model: str | Path) -> dict[str, Any]:
    """How a checkpoint in a folder says that it is asked; {} where it does not say."""
    file = Path(model) / CHAT_FILE
    return json.loads(file.read_text()) if file.is_file() else {}


def kept_model(out: Path, step: int) -> Path:
    """The folder of the model after rollout step `step`."""
    return out / "kept" / f"step-{step:05d}"


def kept_models(out: Path) -> list[tuple[int, Path]]:
    """(rollout step, folder) of all that are whole, in order."""
    return [(number_of(folder), folder) for folder in sorted(out.glob("kept/step-*[0-9]"))]


def latest(checkpoints: Path) -> Path | None:
    """The newest whole training checkpoint in the folder `checkpoints`, or None. One of step 0,
    which older versions wrote, does not count: from it training goes on to other bits."""
    stable = (mark.parent for mark in checkpoints.glob(f"checkpoint-*/{STABLE}"))
    return max(filter(number_of, stable), key=number_of, default=None)


def number_of(model: Path) -> int:
    """Optimizer updates that `checkpoint-N` has behind it, rollout steps that `step-N` has."""
    return int(model.name.rpartition("-")[2])


def resuming(work: Path) -> str:
    """How a stage goes on whose `work` an earlier attempt left; a step of RL is a rollout."""
    newest, job = latest(work / SCRATCH / CHECKPOINTS), dict[str, Any]()
    with suppress(FileNotFoundError, ValueError):  # a power cut tore it: it is written anew
        job = json.loads((work / SCRATCH / "job.json").read_text())
    if job.get("kind") not in ("sft", "rl"):  # others have no checkpoints
        return "resuming"
    if newest is None:
        return "starting over: no checkpoint"
    total = json.loads((newest / "trainer_state.json").read_text())["max_steps"]
    steps = job["settings"].get("steps", total)
    return f"resuming at step {number_of(newest) * steps // total} of {steps}"


def both_ends(text: str, characters: int) -> str:
    """A text without its middle, where it is longer than twice so many characters."""
    if len(text) <= 2 * characters:
        return text
    return f"{text[:characters]} […] {text[-characters:]}"


def read_lines(path: Path, after: int = 0) -> list[dict[str, Any]]:
    """Lines of JSON, without the first `after` and one that a kill has cut; none without a file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()[after:]]


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Those that are finite, and how many are not, if any."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    dropped = len(metrics) - len(finite)
    return finite | ({NON_FINITE: float(dropped)} if dropped else {})


class StepLines:
    """JSON lines with a step each; a resumed run first drops what came after its start."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        self.path = path
        kept = [line for line in read_lines(path) if line["step"] <= after_step]
        replace_text(path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class MetricsFile(StepLines):
    """Lines `{"step": int, "time": float, "metrics": {name: finite number}}` in `out`."""

    def __init__(self, out: Path, *, after_step: int = 0) -> None:
        super().__init__(out / METRICS, after_step=after_step)
        self._named = set[str]()

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers that are not finite stay out, are counted, and are named the first time."""
        finite = finite_metrics(metrics)
        dropped = [name for name in metrics if name not in finite and name not in self._named]
        if dropped:
            self._named.update(dropped)
            print(f"step {step}: not finite, so on no curve: {', '.join(dropped)}", flush=True)
        self.write({"step": step, "time": time.time(), "metrics": finite})


class ProgressFile:
    """`{"done", "total", "note"}` in `out`, replaced at most twice a second, and at the end."""

    def __init__(self, out: Path) -> None:
        self.path, self._last = out / PROGRESS, 0.0

    def report(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if done < total and now - self._last < PROGRESS_INTERVAL_S:
            return
        self._last = now
        progress = json.dumps({"done": done, "total": total, "note": note})
        replace_text(self.path, progress, durable=False)
