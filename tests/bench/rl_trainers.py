"""The same recorded rollouts for two trainers: TRL's GRPOTrainer and ours, told the same.

A number of prompts × 8 answers of log-normal lengths, of which a share of the groups is paid
equally, as in every RL run; nothing is sampled.
"""

import argparse
import math
import random
import zlib
from pathlib import Path
from typing import Any

PROMPTS, ROLLOUTS = 20, 8
MEDIAN, SPREAD = 0.2, 0.8  # median length as a share of the longest
PAY = 1_000.0  # so large that the peer's 1e-4 in the standard deviation does not count
FIRST_TOKEN = 300  # of answers; the tokenizer's own tokens lie below
MODELS: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 128, "layers": 2, "mlp": 384, "vocabulary": 1_024},
    "0.6b": {"hidden": 1_024, "layers": 28, "mlp": 3_072, "heads": 16, "kv_heads": 8,
             "head_dim": 128, "vocabulary": 151_936},
}  # fmt: skip
"""Sizes of random-weight Qwen3 models; 0.6b has those of Qwen/Qwen3-0.6B."""


def seed_of(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


def answer(text: str, place: int, options: argparse.Namespace) -> list[int]:
    """The recorded answer at `place` of the group of prompt `text`."""
    rng, longest = random.Random(seed_of(text, place)), options.longest
    length = max(2, min(longest, round(longest * MEDIAN * math.exp(rng.gauss(0, SPREAD)))))
    vocabulary = MODELS[options.model]["vocabulary"]
    return [rng.randrange(FIRST_TOKEN, vocabulary) for _ in range(length)]


def is_dead(text: str, share: float) -> bool:
    """Exactly `share` of the prompts of every step, rounded: their numbers are in the text."""
    return int(text.split()[1]) % PROMPTS < round(share * PROMPTS)


def token_counts(options: argparse.Namespace, step: int) -> tuple[int, int]:
    """Live and all answer tokens of one step's prompts."""
    counts = [0, 0]
    for n in range(step * PROMPTS, (step + 1) * PROMPTS):
        tokens = sum(len(answer(f"Task {n}", i, options)) for i in range(ROLLOUTS))
        counts[0] += 0 if is_dead(f"Task {n}", options.dead) else tokens
        counts[1] += tokens
    return counts[0], counts[1]


def make_checkpoint(folder: Path, options: argparse.Namespace) -> Path:
    """A Qwen3 with random weights that can place the longest answer."""
    from configs.settings.training import BaseModelSettings
    from training.checkpoints.base import small_model, small_tokenizer
    from training.checkpoints.saving import save_model

    sizes = dict(MODELS[options.model])
    vocabulary = sizes.pop("vocabulary")
    positions = 4_096 * -(-(options.longest + 64) // 4_096)
    settings = BaseModelSettings(kind="random", max_positions=positions, **sizes)  # type: ignore[arg-type]
    tokenizer = small_tokenizer(["user\nTask 12 of the bench\nassistant\n"], FIRST_TOKEN)
    model = small_model(settings, tokenizer, 0)
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    save_model(model, tokenizer, folder / "checkpoint")
    return folder / "checkpoint"


def recorded(options: argparse.Namespace) -> Any:
    from training import render

    def roll_out(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        texts = [p[-1]["content"] for p in prompts]
        answers = [answer(t, i % ROLLOUTS, options) for i, t in enumerate(texts)]
        ids = render.prompt_ids(trainer._tokenizer, texts)
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    return roll_out


def rewards(options: argparse.Namespace) -> Any:
    def pay(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        texts = [p[-1]["content"] for p in prompts]
        good = [seed_of(t, i % ROLLOUTS, "pay") % 2 for i, t in enumerate(texts)]
        good = [i % ROLLOUTS % 2 if i % ROLLOUTS < 2 else g for i, g in enumerate(good)]
        return [
            0.0 if is_dead(t, options.dead) else PAY * g for t, g in zip(texts, good, strict=True)
        ]

    return pay


def build(
    kind: str, options: argparse.Namespace, *, updates: int, steps: int, bf16: bool = False
) -> Any:
    """One of the two trainers (`ours`, `peer`), told the same; `steps` rollouts."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from training.checkpoints.saving import load_model, load_tokenizer
    from training.rl.config import GPPOConfig
    from training.rl.trainer import GPPOTrainer

    sequences = PROMPTS * ROLLOUTS // updates
    a_pass = options.peer_sequences
    accumulation = 1 if kind == "ours" else sequences // a_pass
    told = {
        "output_dir": str(options.checkpoint.parent / kind),
        "per_device_train_batch_size": sequences if kind == "ours" else a_pass,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": updates * accumulation,
        "num_generations": ROLLOUTS,
        "max_steps": steps * updates,
        "max_completion_length": options.longest,
        "learning_rate": 1e-5,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "bf16": bf16,
        "use_cpu": options.device == "cpu",
        "gradient_checkpointing": options.device == "cuda",
        "logging_steps": updates,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "report_to": [],
        "disable_tqdm": True,
    }
    rows = [{"prompt": [{"role": "user", "content": f"Task {i}"}]} for i in range(PROMPTS * steps)]
    common: dict[str, Any] = {
        "model": load_model(options.checkpoint, attention=options.attention, dtype="float32"),
        "processing_class": load_tokenizer(options.checkpoint),
        "reward_funcs": rewards(options),
        "train_dataset": Dataset.from_list(rows),
        "rollout_func": recorded(options),
    }
    if kind == "ours":
        shared = {"policy_loss": "clip_higher", "lm_weight": 0.0, "advantage_std": "unbiased"}
        args = GPPOConfig(micro_batch_tokens=options.budget, **shared, **told)
        return GPPOTrainer(args=args, **common)
    return GRPOTrainer(args=GRPOConfig(loss_type="dapo", beta=0.0, **told), **common)
