"""Where a checkpoint comes from: `lineage.json` for programs and a model card for people.

Both travel with the weights and hold nothing of the machine they were made on: no path, no clock.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from configs.settings.base import Settings, flat, key_of
from eval.records import Record

LINEAGE, CARD = "lineage.json", "README.md"
SHOWN = ("loss", "lm_weight", "beta1", "beta2", "eps_low", "eps_high", "learning_rate", "epochs",
         "steps", "prompts_per_step", "rollouts_per_prompt", "mini_batch_prompts", "max_length",
         "max_tokens", "lora.rank")  # fmt: skip


class TrainingStep(Record):
    """One stage a model went through."""

    stage: str
    """base, sft, rl math or rl code."""
    start: str
    """Hub id with revision, the name of a local folder, or `the step before`."""
    seed: int
    settings: dict[str, str]
    """Dotted names and values, without anything that only says how it was computed."""


_STEPS = TypeAdapter(list[TrainingStep])


def step_of(stage: str, start: str, seed: int, settings: Settings) -> TrainingStep:
    """The step that a stage with these settings is."""
    values = {n: str(v) for n, v in flat(json.loads(key_of(settings))).items()}
    if "model" in values:
        values["model"] = public_name(values["model"])
    return TrainingStep(stage=stage, start=start, seed=seed, settings=values)


def public_name(model: str) -> str:
    """A hub id as it is; of a local folder only its own name."""
    path = Path(model)
    return path.name if path.is_absolute() or path.exists() else model


def read_lineage(checkpoint: str | Path, commit: str | None = None) -> list[TrainingStep]:
    """The steps behind a checkpoint; one of another origin has the step that names it, with its
    `commit` on the hub."""
    file = Path(checkpoint) / LINEAGE
    if file.exists():
        return _STEPS.validate_json(file.read_bytes())
    start = public_name(str(checkpoint)) + (f"@{commit}" if commit else "")
    return [TrainingStep(stage="start", start=start, seed=0, settings={})]


def lineage_after(
    start: Path, commit: str | None, stage: str, seed: int, settings: Settings
) -> list[TrainingStep]:
    """The steps behind what this stage made of the model `start`."""
    return [*read_lineage(start, commit), step_of(stage, "the step before", seed, settings)]


def write_lineage(folder: Path, steps: Sequence[TrainingStep]) -> None:
    """Write `lineage.json` and the model card into a checkpoint folder."""
    (folder / LINEAGE).write_bytes(_STEPS.dump_json(list(steps), indent=1))
    (folder / CARD).write_text(model_card(steps), encoding="utf-8")


def model_card(steps: Sequence[TrainingStep]) -> str:
    """The card in the Hub's format; its text is `model_card.md`."""
    rows = "\n".join(
        f"| {n} | {s.stage} | {s.start} | {s.seed} | {_shown(s)} |" for n, s in enumerate(steps, 1)
    )
    origin = steps[0].start.partition("@")[0]
    base = f"base_model: {origin}\n" if origin.count("/") == 1 else ""
    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return template.format(base=base, rows=rows, last=steps[-1].stage)


def _shown(step: TrainingStep) -> str:
    return ", ".join(f"{n} {step.settings[n]}" for n in SHOWN if n in step.settings) or "-"
