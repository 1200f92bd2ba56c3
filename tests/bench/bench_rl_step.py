"""Live tokens a second of the updates of a rollout: GPPOTrainer against TRL's GRPOTrainer.

    python tests/bench/bench_rl_step.py [--steps 2] [--dead 0.4] [--threads 1] [--longest 384]
    python tests/bench/bench_rl_step.py --model 0.6b --context 8192 --device cuda

Both trainers get the same recorded rollouts (`rl_trainers.py`), model and mini-batches, each in a
process of its own: 20 prompts × 8 answers, 4 updates a rollout. A live token is an answer token of
a group that is not paid equally. Time is that of the process's CPU, on a GPU that of the wall. Peak
memory is the highest resident size (on a GPU: memory in tensors) over that before training. A
second pair of processes computes, in float32, the gradient of one off-policy update of the
objective both trainers share (clip-higher, no LM loss). The first step is left out of the times.
Prints one JSON line.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from rl_trainers import MODELS, PROMPTS, ROLLOUTS, build, make_checkpoint, token_counts  # noqa: E402

PEER = "trl GRPOTrainer (dapo)"
UPDATES = 4


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def memory_mb(device: str) -> tuple[float, float]:
    """(now, highest since the start of the process), in MB."""
    if device == "cuda":
        import torch

        return torch.cuda.memory_allocated() / 2**20, torch.cuda.max_memory_allocated() / 2**20
    return resident_mb(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds(device: str) -> float:
    """CPU time of this process, or the wall once the GPU has done what it was given."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds a rollout's updates and peak memory, in this process."""
    from transformers import TrainerCallback

    cuda = options.device == "cuda"
    trainer = build(kind, options, updates=UPDATES, steps=options.steps + 1, bf16=cuda)
    marks: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step % UPDATES == 0:
                marks.append(seconds(options.device))

    trainer.add_callback(Clock())
    before, _ = memory_mb(options.device)
    trainer.train()
    _, peak = memory_mb(options.device)
    return {"seconds": (marks[-1] - marks[0]) / options.steps, "peak_mb": peak - before}


def disturbed(logp: Any, ids: Any, place: Any) -> Any:
    """The old policy of the gradient: the model, off by a fixed amount at every token."""
    return logp + 0.5 * (37.0 * ids + place).sin()


def disturb_ours(trainer: Any) -> None:
    import torch

    @torch.no_grad()
    def old_logps(updates: Any) -> None:
        for micro in (m for u in updates for m in u.micro_batches):
            logp, _ = trainer._logp(trainer.model, micro)
            ids = micro.input_ids[:, -micro.answers :]
            micro.old_logp = disturbed(logp, ids, micro.mask.cumsum(1))

    trainer._remember_old_logps = old_logps


def disturb_peer(trainer: Any) -> None:
    import torch

    generate = trainer._generate_and_score_completions

    @torch.no_grad()
    def with_old_logps(inputs: Any) -> Any:
        batch = generate(inputs)
        answers, kept = batch["completion_ids"], batch["completion_mask"]
        ids = torch.cat([batch["prompt_ids"], answers], 1)
        mask = torch.cat([batch["prompt_mask"], kept], 1)
        logp, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, answers.shape[1],
            batch_size=trainer.args.per_device_train_batch_size,
        )  # fmt: skip
        batch["old_per_token_logps"] = disturbed(logp, answers, kept.cumsum(1))
        return batch

    trainer._generate_and_score_completions = with_old_logps


def gradient(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Write the gradient of one off-policy update, in float32."""
    from safetensors.torch import save_file
    from transformers import TrainerCallback

    trainer = build(kind, options, updates=1, steps=1)
    (disturb_ours if kind == "ours" else disturb_peer)(trainer)
    kept: dict[str, Any] = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **_):
            kept.update({n: p.grad.cpu().clone() for n, p in trainer.model.named_parameters()})

    trainer.args.max_grad_norm = 0.0
    trainer.add_callback(Keep())
    trainer.train()
    save_file(kept, options.checkpoint.parent / f"{kind}.safetensors")
    return {}


def difference(folder: Path, live_share: float) -> float:
    """‖g_ours·share − g_peer‖ / ‖g_peer‖: the peer also divides by the tokens of dead groups."""
    from safetensors.torch import load_file

    ours, peer = (load_file(folder / f"{kind}.safetensors") for kind in ("ours", "peer"))
    gap = sum(float((ours[n] * live_share - g).double().square().sum()) for n, g in peer.items())
    return math.sqrt(gap / sum(float(g.double().square().sum()) for g in peer.values()))


def in_a_process(job: str, kind: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", job, "--kind", kind]
    for name, value in vars(options).items():
        if name not in ("job", "kind") and value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    environment = {**os.environ, **quiet, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2, help="rollouts to average over")
    parser.add_argument("--dead", type=float, default=0.4, help="share of groups paid equally")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--longest", "--context", type=int, default=384, help="answer tokens")
    parser.add_argument("--model", choices=MODELS, default="tiny", help="random-weight Qwen3")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--attention", default="sdpa", help="flash_attention_2: ours is packed")
    parser.add_argument("--peer-sequences", type=int, help="of a pass; default 8, on a GPU 2")
    parser.add_argument("--budget", type=int, help="tokens of a pass of ours; default 2048, on a "
                        "GPU as many as the peer's longest pass")  # fmt: skip
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--job", choices=("measure", "gradient"))
    parser.add_argument("--kind", choices=("ours", "peer"))
    options = parser.parse_args(words)
    cuda = options.device == "cuda"
    options.peer_sequences = options.peer_sequences or (2 if cuda else 8)
    most = options.peer_sequences * (options.longest + 64)
    options.budget = options.budget or (most if cuda else 2_048)
    return options


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run both trainers for speed and memory, then for the gradient."""
    with tempfile.TemporaryDirectory() as scratch:
        options.checkpoint = make_checkpoint(Path(scratch), options)
        ours, peer = (in_a_process("measure", kind, options) for kind in ("ours", "peer"))
        for kind in ("ours", "peer"):
            in_a_process("gradient", kind, options)
        live, tokens = token_counts(options, 0)
        gap = difference(Path(scratch), live / tokens)
    live = sum(token_counts(options, s)[0] for s in range(1, options.steps + 1)) / options.steps
    speed = {kind: live / found["seconds"] for kind, found in (("ours", ours), ("peer", peer))}
    setup = (
        f"{PROMPTS} prompts x {ROLLOUTS}, {UPDATES} updates, answers to {options.longest} tokens, "
        f"{round(options.dead * PROMPTS)} of {PROMPTS} groups dead, model {options.model} on "
        f"{options.device}, {options.threads} thread(s), mean of {options.steps} rollouts; "
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


def main(words: list[str]) -> None:
    options = parsed(words)
    if options.job:
        job = measure if options.job == "measure" else gradient
        print(json.dumps(job(options.kind, options)))
        return
    print(json.dumps(compare(options)))


if __name__ == "__main__":
    main(sys.argv[1:])
