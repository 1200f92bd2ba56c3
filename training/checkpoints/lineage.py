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
    name = public_name(str(checkpoint))
    start = f"{name}@{commit}" if commit else name
    return [TrainingStep(stage="start", start=start, seed=0, settings={})]


def write_lineage(folder: Path, steps: Sequence[TrainingStep]) -> None:
    """Write `lineage.json` and the model card into a checkpoint folder."""
    (folder / LINEAGE).write_bytes(_STEPS.dump_json(list(steps), indent=1))
    (folder / CARD).write_text(model_card(steps), encoding="utf-8")


def model_card(steps: Sequence[TrainingStep]) -> str:
    """The card in the Hub's format: a header for machines, then the lineage, then how to use it."""
    rows = "\n".join(
        f"| {n} | {s.stage} | {s.start} | {s.seed} | {_shown(s)} |" for n, s in enumerate(steps, 1)
    )
    origin = steps[0].start.partition("@")[0]
    base = f"base_model: {origin}\n" if origin.count("/") == 1 else ""
    return _CARD.format(base=base, rows=rows, last=steps[-1].stage)


def _shown(step: TrainingStep) -> str:
    return ", ".join(f"{n} {step.settings[n]}" for n in SHOWN if n in step.settings) or "-"


_CARD = """---
library_name: transformers
pipeline_tag: text-generation
{base}tags: [klear, reasoning, gppo, "arxiv:2508.07629"]
---

# A reasoning model made with klear (after {last})

The model thinks between `<think>` and `</think>`, then answers: mathematics in `\\boxed{{}}`, code
in a fenced block. Post-training follows *Klear-Reasoner* (arXiv 2508.07629).

## Lineage

| step | stage | started from | seed | settings |
|---|---|---|---|---|
{rows}

`lineage.json` holds every setting of every step.

## Use

    vllm serve FOLDER
    AutoModelForCausalLM.from_pretrained("FOLDER")

The chat template is in the tokenizer and the end-of-turn token in the generation config. The paper
samples with temperature 0.6 and top_p 0.95.
"""
