"""Seconds of one rollout and its updates: GPPOTrainer against TRL's GRPOTrainer.

    python tests/bench/bench_rl_step.py [--steps 4] [--dead 0.4] [--threads 1]

Both trainers run on the same small model, prompts and rewards, each in a process of its own with
the same mini-batches (4 prompts × 8 rollouts, 8 updates a rollout). A share of the groups is paid
equally, as happens in every RL run. The first step is left out. Prints one JSON line.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

PEER = "trl GRPOTrainer (dapo)"
PROMPTS, ROLLOUTS, MINI_BATCH, MAX_TOKENS = 32, 8, 4, 192
SFT_EXAMPLES = 3_000


def make_checkpoint(folder: Path, threads: int) -> Path:
    """A model that answers in the teacher's format, so that lengths vary as they do in a run."""
    from configs.engines import EngineSettings
    from configs.training_stages import BaseModelSettings, SFTSettings, TrainRuntime
    from eval.families import countdown
    from eval.records import Example
    from eval.tables import write_table
    from training.base import create_base
    from training.jobs import BaseJob, SFTJob
    from training.sft import run_sft

    rng, teacher = random.Random(0), EngineSettings(kind="scripted")
    examples = [
        Example(
            problem_id=p.id,
            index=0,
            domain="math",
            source=p.source,
            prompt=p.prompt,
            response=countdown.teach(rng, p.prompt, teacher),
        )
        for p in countdown.generate(rng, SFT_EXAMPLES, "train", largest=8)
    ]
    path = folder / "examples.parquet"
    write_table(path, Example, examples)
    base = BaseJob(
        out=folder / "base", examples=path, settings=BaseModelSettings(kind="random"), seed=0
    )
    create_base(base)
    settings = SFTSettings(
        epochs=1,
        learning_rate=3e-3,
        min_learning_rate=3e-4,
        optimizer="muon",
        batch_tokens=1_024,
        max_length=512,
        runtime=TrainRuntime(bf16=False, gradient_checkpointing=False, threads=threads),
    )
    run_sft(
        SFTJob(
            out=folder / "sft",
            base=folder / "base/checkpoint",
            examples=path,
            settings=settings,
        )
    )
    return folder / "sft/checkpoint"


def reward_with_dead_groups(share: float) -> Any:
    """Pays by length, except that a share of the prompts pays every answer the same."""

    def pay(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        rewards = []
        for prompt, completion in zip(prompts, completions, strict=True):
            dead = zlib.crc32(prompt[-1]["content"].encode()) % 1000 < 1000 * share
            rewards.append(1.0 if dead else float(len(completion[-1]["content"]) % 2))
        return rewards

    return pay


def arguments(checkpoint: Path, steps: int) -> dict[str, Any]:
    """What both trainers are told alike."""
    updates = PROMPTS // MINI_BATCH
    return {
        "output_dir": str(checkpoint.parent / "trainer"),
        "per_device_train_batch_size": MINI_BATCH * ROLLOUTS,
        "steps_per_generation": updates,
        "num_generations": ROLLOUTS,
        "max_steps": (steps + 1) * updates,
        "max_completion_length": MAX_TOKENS,
        "learning_rate": 1e-5,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "temperature": 1.0,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": updates,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 0,
    }


def measure(kind: str, checkpoint: Path, steps: int, dead: float, threads: int) -> dict[str, float]:
    """Wall and CPU seconds of a step, in this process."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from configs.training_stages import RLSettings
    from eval.families import countdown
    from training import render
    from training.checkpoints import load_model, load_tokenizer
    from training.gppo_config import GPPOConfig
    from training.gppo_trainer import GPPOTrainer
    from training.rl import rollout_function

    torch.set_num_threads(threads)
    problems = countdown.generate(random.Random(1), 400, "train", largest=8)
    common: dict[str, Any] = {
        "model": load_model(checkpoint, dtype="float32"),
        "processing_class": load_tokenizer(checkpoint),
        "reward_funcs": reward_with_dead_groups(dead),
        "train_dataset": Dataset.from_list(
            [{"prompt": render.conversation(p.prompt)} for p in problems]
        ),
    }
    told = arguments(checkpoint, steps)
    if kind == "ours":
        trainer: GRPOTrainer = GPPOTrainer(
            args=GPPOConfig(micro_batch_tokens=8_192, **told),
            rollout_func=rollout_function(RLSettings(engine="transformers")),
            **common,
        )
    else:
        trainer = GRPOTrainer(args=GRPOConfig(loss_type="dapo", beta=0.0, **told), **common)
    marks: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step % (PROMPTS // MINI_BATCH) == 0:
                marks.append((time.perf_counter(), time.process_time()))

    trainer.add_callback(Clock())
    trainer.train()
    (wall_0, cpu_0), (wall_1, cpu_1) = marks[0], marks[-1]
    return {"wall_s": (wall_1 - wall_0) / steps, "cpu_s": (cpu_1 - cpu_0) / steps}


def in_a_process(kind: str, checkpoint: Path, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", kind, "--checkpoint", str(checkpoint),
               "--steps", str(options.steps), "--dead", str(options.dead),
               "--threads", str(options.threads)]  # fmt: skip
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **quiet}
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="rollout steps to average over")
    parser.add_argument("--dead", type=float, default=0.4, help="share of groups paid equally")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--measure", choices=("ours", "peer"))
    options = parser.parse_args()
    if options.measure:
        found = measure(
            options.measure, options.checkpoint, options.steps, options.dead, options.threads
        )
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = options.checkpoint or make_checkpoint(Path(scratch), options.threads)
        ours = in_a_process("ours", checkpoint, options)
        peer = in_a_process("peer", checkpoint, options)
    setup = (
        f"{PROMPTS} prompts x {ROLLOUTS}, {PROMPTS // MINI_BATCH} updates, "
        f"{options.dead:.0%} of groups dead, {options.threads} thread(s), mean of {options.steps} "
        f"steps; CPU seconds {ours['cpu_s']:.2f} against {peer['cpu_s']:.2f}"
    )
    print(
        json.dumps(
            {
                "bench": "rl_step",
                "ours": round(ours["wall_s"], 3),
                "peer": {PEER: round(peer["wall_s"], 3)},
                "unit": "s per rollout step",
                "ratio": round(peer["wall_s"] / ours["wall_s"], 2),
                "setup": setup,
            }
        )
    )


if __name__ == "__main__":
    main()
