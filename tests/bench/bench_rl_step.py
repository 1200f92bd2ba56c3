"""Live tokens a second of the updates of a rollout: GPPOTrainer against TRL's GRPOTrainer.

    python tests/bench/bench_rl_step.py [--steps 2] [--dead 0.4] [--threads 1] [--longest 384]
    python tests/bench/bench_rl_step.py --model 0.6b --context 8192 --device cuda [--prompts 20]

Both trainers get the same recorded rollouts, model and mini-batches, each in a process of its own:
prompts × 8 answers of log-normal lengths, 4 updates a rollout; a share of the groups is paid
equally, as in every RL run. A live token is an answer token of the other groups. Time is that of
the process's CPU, on a GPU that of the wall. Peak memory is the highest resident size (on a GPU:
memory in tensors) over that before training. A second pair of processes computes, in float32, the
gradient of one off-policy update of the objective both trainers share (clip-higher, no LM loss).
The first step is left out of the times. Prints one JSON line.
"""

import argparse
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from own_process import in_a_process

PEER = "trl GRPOTrainer (dapo)"
ROLLOUTS, UPDATES = 8, 4
MEDIAN, SPREAD = 0.2, 0.8  # median length as a share of the longest
PAY = 1_000.0  # so large that the peer's 1e-4 in the standard deviation does not count
FIRST_TOKEN = 300  # of answers; the tokenizer's own tokens lie below
MODELS: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 128, "layers": 2, "mlp": 384, "vocabulary": 1_024},
    "0.6b": {"hidden": 1_024, "layers": 28, "mlp": 3_072, "heads": 16, "kv_heads": 8,
             "head_dim": 128, "vocabulary": 151_936},
    "8b-layers": {"hidden": 4_096, "layers": 4, "mlp": 12_288, "heads": 32, "kv_heads": 8,
                  "head_dim": 128, "vocabulary": 151_936},
}  # fmt: skip
"""Sizes of random-weight Qwen3 models; 0.6b has those of Qwen/Qwen3-0.6B, 8b-layers 4 of the 36
layers of Qwen/Qwen3-8B."""


def seed_of(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


def answer(text: str, place: int, options: argparse.Namespace) -> list[int]:
    """The recorded answer at `place` of the group of prompt `text`."""
    rng, longest = random.Random(seed_of(text, place)), options.longest
    length = max(2, min(longest, round(longest * MEDIAN * math.exp(rng.gauss(0, SPREAD)))))
    vocabulary = MODELS[options.model]["vocabulary"]
    return [rng.randrange(FIRST_TOKEN, vocabulary) for _ in range(length)]


def is_dead(text: str, options: argparse.Namespace) -> bool:
    """Exactly the share of the prompts of every step, rounded: their numbers are in the text."""
    return int(text.split()[1]) % options.prompts < round(options.dead * options.prompts)


def token_counts(options: argparse.Namespace, step: int) -> tuple[int, int]:
    """Live and all answer tokens of one step's prompts."""
    live = total = 0
    for text in (f"Task {n}" for n in range(step * options.prompts, (step + 1) * options.prompts)):
        tokens = sum(len(answer(text, i, options)) for i in range(ROLLOUTS))
        live += 0 if is_dead(text, options) else tokens
        total += tokens
    return live, total


def make_checkpoint(folder: Path, options: argparse.Namespace) -> Path:
    """A Qwen3 with random weights that can place the longest answer."""
    from klear.configs.settings.training import BaseModelSettings
    from klear.training.base import small_model, small_tokenizer
    from klear.training.models import save_model

    sizes = dict(MODELS[options.model])
    vocabulary = sizes.pop("vocabulary")
    positions = 4_096 * -(-(options.longest + 64) // 4_096)
    settings = BaseModelSettings(kind="random", max_positions=positions, **sizes)  # type: ignore[arg-type]
    tokenizer = small_tokenizer(["user\nTask 12 of the bench\nassistant\n"], FIRST_TOKEN)
    model = small_model(settings, tokenizer, 0)
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    save_model(model, tokenizer, folder / "checkpoint")
    return folder / "checkpoint"


def build(kind: str, options: argparse.Namespace, *, updates: int, steps: int, bf16=False) -> Any:
    """One of the two trainers (`ours`, `peer`), told the same; `steps` rollouts."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from klear.training.models import load_model, load_tokenizer
    from klear.training.render import ChatFormat
    from klear.training.rl.config import GPPOConfig
    from klear.training.rl.trainer import GPPOTrainer

    def recorded(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        texts = [p[-1]["content"] for p in prompts]
        answers = [answer(t, i % ROLLOUTS, options) for i, t in enumerate(texts)]
        ids = ChatFormat.from_template(trainer._tokenizer).prompt_ids(texts)
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    def pay(prompts: list[Any], **_: Any) -> list[float]:
        paid = []
        for i, text in enumerate(p[-1]["content"] for p in prompts):
            place = i % ROLLOUTS
            good = place if place < 2 else seed_of(text, place, "pay") % 2
            paid.append(0.0 if is_dead(text, options) else PAY * good)
        return paid

    sequences, a_pass = options.prompts * ROLLOUTS // updates, options.peer_sequences
    accumulation = 1 if kind == "ours" else sequences // a_pass
    config = {
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
    rows = [
        {"prompt": [{"role": "user", "content": f"Task {i}"}]}
        for i in range(options.prompts * steps)
    ]
    common: dict[str, Any] = {
        "model": load_model(options.checkpoint, attention=options.attention, dtype="float32"),
        "processing_class": load_tokenizer(options.checkpoint),
        "reward_funcs": pay,
        "train_dataset": Dataset.from_list(rows),
        "rollout_func": recorded,
    }
    if kind == "ours":
        shared = {"policy_loss": "clip_higher", "lm_weight": 0.0, "advantage_std": "unbiased"}
        args = GPPOConfig(micro_batch_tokens=options.budget, **shared, **config)
        return GPPOTrainer(args=args, **common)
    return GRPOTrainer(args=GRPOConfig(loss_type="dapo", beta=0.0, **config), **common)


def state_of(device: str) -> tuple[float, float, float]:
    """(seconds: CPU time, or the wall once the GPU is done; memory in MB now; the highest)."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        memory = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        return time.perf_counter(), memory[0] / 2**20, memory[1] / 2**20
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.process_time(), pages * resource.getpagesize() / 2**20, highest


def measure(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds a rollout's updates and peak memory, in this process."""
    from transformers import TrainerCallback

    cuda = options.device == "cuda"
    trainer = build(kind, options, updates=UPDATES, steps=options.steps + 1, bf16=cuda)
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step % UPDATES == 0:
                marks.append(state_of(options.device)[0])

    trainer.add_callback(Clock())
    _, before, _ = state_of(options.device)
    trainer.train()
    _, _, peak = state_of(options.device)
    return {"seconds": (marks[-1] - marks[0]) / options.steps, "peak_mb": peak - before}


def disturb(kind: str, trainer: Any) -> None:
    """Give the trainer an old policy: the model, off by a fixed amount at every token."""
    import torch

    def disturbed(logp: Any, ids: Any, place: Any) -> Any:
        return logp + 0.5 * (37.0 * ids + place).sin()

    @torch.no_grad()
    def of_updates(updates: Any) -> None:
        for micro in (m for u in updates for m in u.micro_batches):
            logp, _ = trainer._logp(trainer.model, micro)
            ids = micro.input_ids[:, -micro.answers :]
            micro.old_logp = disturbed(logp, ids, micro.mask.cumsum(1))

    generate = trainer._generate_and_score_completions

    @torch.no_grad()
    def of_batch(inputs: Any) -> Any:
        batch = generate(inputs)
        answers, kept = batch["completion_ids"], batch["completion_mask"]
        ids = torch.cat([batch["prompt_ids"], answers], 1)
        mask = torch.cat([batch["prompt_mask"], kept], 1)
        size = trainer.args.per_device_train_batch_size
        logp, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, answers.shape[1], batch_size=size
        )
        batch["old_per_token_logps"] = disturbed(logp, answers, kept.cumsum(1))
        return batch

    if kind == "ours":
        trainer._remember_old_logps = of_updates
    else:
        trainer._generate_and_score_completions = of_batch


def gradient(kind: str, options: argparse.Namespace) -> None:
    """Write the gradient of one off-policy update, in float32."""
    from safetensors.torch import save_file
    from transformers import TrainerCallback

    trainer = build(kind, options, updates=1, steps=1)
    disturb(kind, trainer)
    kept: dict[str, Any] = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **_):
            kept.update({n: p.grad.cpu().clone() for n, p in trainer.model.named_parameters()})

    trainer.args.max_grad_norm = 0.0
    trainer.add_callback(Keep())
    trainer.train()
    save_file(kept, options.checkpoint.parent / f"{kind}.safetensors")


def difference(folder: Path, live_share: float) -> float:
    """‖g_ours·share − g_peer‖ / ‖g_peer‖: the peer also divides by the tokens of dead groups."""
    from safetensors.torch import load_file

    ours, peer = (load_file(folder / f"{kind}.safetensors") for kind in ("ours", "peer"))
    gap = sum(float((ours[n] * live_share - g).double().square().sum()) for n, g in peer.items())
    return math.sqrt(gap / sum(float(g.double().square().sum()) for g in peer.values()))


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2, help="rollouts to average over")
    parser.add_argument("--prompts", type=int, default=20, help="of a rollout")
    parser.add_argument("--dead", type=float, default=0.4, help="share of groups paid equally")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--longest", "--context", type=int, default=384, help="answer tokens")
    parser.add_argument("--model", choices=MODELS, default="tiny", help="random-weight Qwen3")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", default="sdpa", help="flash_attention_2: ours is packed")
    parser.add_argument("--peer-sequences", type=int, help="of a pass; default 8, on a GPU 2")
    parser.add_argument("--budget", type=int, help="tokens of a pass of ours; default 2048, on a "
                        "GPU as many as the peer's longest pass")  # fmt: skip
    options = parser.parse_args(words)
    cuda = options.device == "cuda"
    options.peer_sequences = options.peer_sequences or (2 if cuda else 8)
    most = options.peer_sequences * (options.longest + 64)
    options.budget = options.budget or (most if cuda else 2_048)
    return options


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run both trainers for speed and memory, then for the gradient."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    os.environ |= {**quiet, "OMP_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory() as scratch:
        options.checkpoint = make_checkpoint(Path(scratch), options)
        ours, peer = (in_a_process(measure, kind, options) for kind in ("ours", "peer"))
        for kind in ("ours", "peer"):
            in_a_process(gradient, kind, options)
        live, tokens = token_counts(options, 0)
        gap = difference(Path(scratch), live / tokens)
    live = sum(token_counts(options, s)[0] for s in range(1, options.steps + 1)) / options.steps
    speed = {kind: live / figures["seconds"] for kind, figures in (("ours", ours), ("peer", peer))}
    setup = (
        f"{options.prompts} prompts x {ROLLOUTS}, {UPDATES} updates, answers to {options.longest} "
        f"tokens, {round(options.dead * options.prompts)} of {options.prompts} groups dead, model "
        f"{options.model} on {options.device}, {options.threads} thread(s), mean of "
        f"{options.steps} rollouts; "
        f"{options.budget} tokens a pass against {options.peer_sequences} sequences; peak memory "
        f"{ours['peak_mb']:.0f} MB against {peer['peak_mb']:.0f} MB; relative difference of the "
        f"shared gradient {gap:.1e}"
    )
    return {
        "bench": "rl_step",
        "ours": round(speed["ours"], 1),
        "peer": {PEER: round(speed["peer"], 1)},
        "unit": f"live tokens per {'CPU ' if options.device == 'cpu' else ''}second",
        "ratio": round(speed["ours"] / speed["peer"], 2),
        "setup": setup,
    }


if __name__ == "__main__":
    print(json.dumps(compare(parsed(sys.argv[1:]))))
