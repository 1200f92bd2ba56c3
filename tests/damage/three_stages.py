"""A store with one real published stage of each kind: parquet tables, a checkpoint, a report.

Run as a program it computes them: `python tests/damage/three_stages.py STORE [--verify]`, one line
a stage: `computed`, `cached`, or `failed`, with the reason. The exit code is that of `klear`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from klear.configs.settings.base import Settings
from klear.configs.settings.sources import CollectSettings, Source
from klear.tasks.data.collect import collect
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.observe.pages import Cards
from klear.tasks.observe.terminal import LogDisplay
from klear.tasks.report.page import Page, literal
from klear.tasks.store.store import Artifact, Store

PROBLEMS = 40


class Knobs(Settings):
    size: int = 200


@stage(version=1)
def sft(out: Path, problems: Artifact, *, settings: Knobs) -> Metrics:
    """A checkpoint folder as training leaves it, without the seconds that training takes."""
    problems.file("kept.parquet").read_bytes()
    folder, logs = out / "checkpoint", out / "logs"
    folder.mkdir(exist_ok=True)
    logs.mkdir(exist_ok=True)
    rows = np.arange(settings.size * 16, dtype=np.float32).reshape(settings.size, 16)
    save_file({"model.embed_tokens.weight": rows}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "hidden_size": 16}))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    (logs / "child.log").write_text("trained\n")
    return {"steps": 1.0}


@stage(version=1)
def report(out: Path, problems: Artifact, model: Artifact, *, settings: Knobs) -> Metrics:
    """The two pages of a report, made from what the stages before it left."""
    parts = [problems.file("kept.parquet"), model.file("checkpoint/model.safetensors")]
    sizes = [f"{len(p.read_bytes())} bytes in {p.name}" for p in parts]
    Page("Report", "of three stages", "", "\n\n".join(map(literal, sizes))).write(out)
    return {}


def settings_of(store: Path) -> CollectSettings:
    """Forty problems in a file beside the store."""
    rows = store.parent / "problems.jsonl"
    if not rows.exists():
        lines = (json.dumps({"problem": f"{i} + 1?", "answer": i + 1}) for i in range(PROBLEMS))
        rows.write_text("\n".join(lines) + "\n")
    return CollectSettings(
        root=str(rows.parent), sources=(Source(name="sums", files=(rows.name,)),)
    )


class Lines(LogDisplay):
    """The display of a run as plain lines."""

    def __init__(self) -> None:
        super().__init__()
        self.why: dict[str, str] = {}
        self.outcome: dict[str, str] = {}

    def started(self, stage: str, why: str) -> None:
        self.why[stage] = why

    def finished(self, stage: str, outcome: str, seconds: float, metrics: object) -> None:
        self.outcome[stage] = outcome


def run_all(store: Path, *, verify: bool = False) -> Lines:
    """Compute or reuse the three stages; what became of each, also when one fails."""
    lines = Lines()
    observers = (Cards(Store(store)), lines)
    with active(Run(store=Store(store), verify=verify, observers=observers)):
        problems = collect(settings=settings_of(store))
        report(problems, sft(problems, settings=Knobs()), settings=Knobs())
    return lines


def main(store: str, *options: str) -> int:
    try:
        lines = run_all(Path(store), verify="--verify" in options)
    except (OSError, ValueError) as error:
        print(f"failed: {error}")
        return 1
    for name, outcome in lines.outcome.items():
        print(f"{name}: {outcome} ({lines.why.get(name, '')})")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
