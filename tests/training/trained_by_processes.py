"""One process of several (or of one) that train the same: `python … CHECKPOINT EXAMPLES OUT`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import state
from accelerate.utils import DistributedType
from transformers import TrainerCallback

from klear.configs.settings.training import SFTSettings, TrainRuntime
from klear.training import sft
from klear.training.launch.jobs import SFTJob
from klear.training.launch.ranks import join_run, rank, world_size
from klear.training.models import load_model, load_tokenizer, save_trained
from klear.training.render import ChatFormat
from tests.cluster.fixed_answers import GROUP, number, roll_out
from tests.training.conftest import small_trainer

PROMPTS = 8
CUDA = "TRAIN_ON_CUDA" in os.environ  # a card for each process: tests/gpu/tier3.py


def shard_on_cpu() -> None:
    """accelerate shards on GPUs only: here FSDP2 over gloo stands in for it."""
    original = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        plugin = fsdp_plugin or vars(self).get("fsdp_plugin")  # every call resets the type
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin

    state.AcceleratorState.__init__ = init  # type: ignore[method-assign]


def pay(prompts: list[Any], **_: Any) -> list[float]:
    texts = [p[-1]["content"] for p in prompts]
    return [float(number(t) % 3 > 0 and (i % 4) < 1 + number(t) % 2) for i, t in enumerate(texts)]


def rl(name: str, checkpoint: str, out: Path, **more: Any) -> None:
    """Two steps into `out/name`; `resumed` begins after the first one of another run."""
    each = PROMPTS // world_size()
    trainer = small_trainer(
        checkpoint, out, pay, prompts=each, mini_batch=each, rollouts=GROUP, steps=2, lm_weight=0.5,
        rollout_func=roll_out, micro_batch_tokens=128, save_strategy="steps", save_steps=1,
        use_cpu=not CUDA, **more,
    )  # fmt: skip

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 1:
                save_trained(trainer, out / "kept", "fp32")

    if name == "padded":
        trainer.add_callback(Keep())
    trainer.train(resume_from_checkpoint=f"{out}/checkpoint-1" if name == "resumed" else None)
    save_trained(trainer, out / name, "fp32")
    if trainer.is_world_process_zero():
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        (out / f"{name}.json").write_text(json.dumps(losses))


def tune(name: str, checkpoint: str, examples: str, out: Path, start: str | None = None) -> Any:
    runtime = TrainRuntime(precision="fp32", gradient_checkpointing=False, micro_batch_tokens=400)
    settings = SFTSettings(epochs=1, batch_tokens=1_000, checkpoint_steps=1, max_length=256,
                           learning_rate=1e-3, min_learning_rate=1e-3, runtime=runtime)  # fmt: skip
    job = SFTJob(out=out, base=Path(checkpoint), examples=Path(examples), settings=settings)
    tokenizer = load_tokenizer(checkpoint)
    rows = sft.tokenized(
        job.examples, ChatFormat.from_template(tokenizer), 256, out / f"tokens{rank()}"
    )
    model = load_model(checkpoint, dtype="float32")
    trainer = sft.build_trainer(job, model, tokenizer, rows)
    trainer.train(resume_from_checkpoint=start)
    assert trainer.args.gradient_accumulation_steps > 1
    assert trainer.is_fsdp_enabled == ("ACCELERATE_USE_FSDP" in os.environ)
    save_trained(trainer, out / name, "fp32")
    return trainer


def main(checkpoint: str, examples: str, out: Path) -> None:
    torch.set_num_threads(1)
    if "ACCELERATE_USE_FSDP" in os.environ and not CUDA:
        shard_on_cpu()
    join_run(out)
    rl("padded", checkpoint, out)
    if world_size() > 1:
        rl("resumed", checkpoint, out)
    rl("packed", checkpoint, out, packed=True)
    save_trained(tune("sft", checkpoint, examples, out), out / "half", "bf16")
    if world_size() > 1:
        tune("sft_resumed", checkpoint, examples, out, f"{out}/.resume/checkpoints/checkpoint-2")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
