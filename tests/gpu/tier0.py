"""T0, one card: random weights, torch, transformers and TRL; no vLLM, no network, 20 minutes,
half of them `--only sft_speed`.

Without CUDA the same cases run at toy size on the CPU, as far as they say something there. Bounds
are relative distances ‖a − b‖ / ‖b‖ of whole gradients. The functions are those of the tests and
benchmarks; nothing heavy is imported before a case runs.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.check import Case, Report, Skip

FP32, FP16, BF16 = 1e-4, 0.01, 0.05
ATTENTIONS = {  # beside sdpa, and the module that each one needs
    "flex_attention": "triton",
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "kernels-community/flash-attn2": "kernels",
    "kernels-community/vllm-flash-attn3": "kernels",
}


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """‖one − other‖ / ‖other‖ over all arrays by name; NaN where something is not finite."""
    import numpy as np

    assert one.keys() == other.keys()
    pairs = [(np.asarray(one[n], np.float64), np.asarray(other[n], np.float64)) for n in other]
    gap = sum(float(np.square(a - b).sum()) for a, b in pairs)
    return math.sqrt(gap / sum(float(np.square(b).sum()) for _, b in pairs))


def arrays(**tensors: Any) -> dict[str, Any]:
    return {name: tensor.detach().cpu().double().numpy() for name, tensor in tensors.items()}


def loss_gradients(report: Report) -> None:
    """Every loss in float32 on the device against float64 on the CPU."""
    import torch

    from klear.training.losses import POLICY_LOSSES
    from tests.training.test_loss_gradients import Case as Tokens

    for loss in sorted(POLICY_LOSSES):
        worst = 0.0
        for seed in range(20 if report.cuda else 4):
            exact, moved = Tokens(seed), Tokens(seed)
            for name, value in vars(moved).items():
                if isinstance(value, torch.Tensor):
                    kind = torch.float32 if value.is_floating_point() else value.dtype
                    setattr(moved, name, value.to(report.device, kind))
            gradients = (arrays(logits=case.gradient(loss)) for case in (moved, exact))
            worst = max(worst, distance(*gradients))
        report.bound(loss, worst, 1e-5)


def fused_head(report: Report) -> None:
    """The head in tiles against whole logits in float32, over several tiles each way."""
    import torch

    from tests.gpu.lm_head import Problem

    sizes = (9_000, 256, 70_000) if report.cuda else (300, 32, 1_000)
    for dtype, bound in (("float32", FP32), ("bfloat16", BF16)):
        head, plain = (Problem(sizes, report.device, d) for d in (dtype, "float32"))
        with torch.no_grad():
            for name in ("hidden", "weight"):
                getattr(plain, name).copy_(getattr(head, name))
        plain.target, plain.advantage = head.target, head.advantage.float()
        plain.positive = head.positive
        head.ours()
        plain.peer()
        gradients = [arrays(hidden=p.hidden.grad, weight=p.weight.grad) for p in (head, plain)]
        report.bound(dtype, distance(*gradients), bound)


def small_checkpoint(folder: Path) -> dict[str, Path]:
    """Problems, examples and a base model of a few thousand parameters."""
    from tests.training.conftest import small_examples, small_files, small_problems

    problems = small_problems(24)
    return small_files(folder, problems, small_examples(problems, 2))


def update(checkpoint: Path, out: Path, attention: str = "sdpa", **changes: Any) -> Any:
    """(gradients, new weights), as arrays, of one GPPO update on given answers; `changes` are
    GPPOConfig's."""
    from tests.training.conftest import gradients_of, small_trainer
    from tests.training.test_gppo_equivalence import fixed, pay

    options = {"prompts": 4, "mini_batch": 4, "rollout_func": fixed, "max_grad_norm": 0.0}
    trainer = small_trainer(checkpoint, out, pay, **(options | changes))
    if attention != "sdpa":
        try:
            trainer.accelerator.unwrap_model(trainer.model).set_attn_implementation(attention)
        except OSError as error:  # of the hub, which is not asked: `kernels` has none in its cache
            raise Skip(f"{attention} cannot be loaded: {error}") from error
    (gradient,) = gradients_of(trainer)
    return arrays(**gradient), arrays(**dict(trainer.model.named_parameters()))


UPDATES: dict[str, tuple[float, dict, dict, tuple[str, ...]]] = {
    # float32 on the card
    "update_is_that_of_the_cpu": (FP32, {}, {"use_cpu": True}, ("cuda",)),
    # under autocast: finite, and near the update in float32
    "bf16_update": (BF16, {"bf16": True}, {}, ()),
    # with the loss scaled: nearer to it than bf16 must be
    "fp16_update": (FP16, {"fp16": True}, {}, ("cuda",)),
    # with the logits in float32: as near as bf16 must be
    "fp32_head_update": (BF16, {"bf16": True, "cast_lm_head_to_fp32": True}, {}, ()),
}
"""By case the bound, what one update and the other differ in, and what is needed."""


def compare_updates(name: str, report: Report) -> None:
    """The second one in a process of its own: accelerate knows one device and one precision a
    process."""
    from own_process import in_a_process

    bound, here, elsewhere, _ = UPDATES[name]
    base, device = small_checkpoint(report.scratch)["checkpoint"], {"use_cpu": not report.cuda}
    one = update(base, report.scratch / "one", **device | here)
    other = in_a_process(partial(update, base, report.scratch / "other", **device | elsewhere))
    for what, a, b in zip(("gradient", "weights"), one, other, strict=True):
        report.bound(what, distance(a, b), bound)


def packed_is_padded(attention: str, report: Report) -> None:
    """Packed rows under an attention against padded rows under sdpa; flash kernels need bf16."""
    base, flash = small_checkpoint(report.scratch)["checkpoint"], attention != "sdpa"
    same = {"use_cpu": not report.cuda, "bf16": flash, "micro_batch_tokens": 10_000}
    padded = update(base, report.scratch / "padded", packed=False, **same)
    for budget in (10_000, 64):
        changes = same | {"packed": True, "micro_batch_tokens": budget}
        packed = update(base, report.scratch / f"packed{budget}", attention, **changes)
        report.bound(f"{budget} tokens", distance(packed[0], padded[0]), BF16 if flash else FP32)


def kill_and_resume(kind: str, report: Report) -> None:
    """SIGKILL in an update, then the same job again: the bits of a whole run, where two whole runs
    have the same bits; else no further from a whole run than ten times another one is."""
    from safetensors.torch import load_file

    from tests.training.test_sigkill import curves, stage

    files = small_checkpoint(report.scratch)
    inputs = files["checkpoint"], files["examples" if kind == "sft" else "problems"]
    unbroken, again, cut = (report.scratch / name for name in ("whole", "again", "cut"))
    stage(kind, *inputs, unbroken)
    stage(kind, *inputs, again)
    stage(kind, *inputs, cut, hook="on_optimizer_step", call=11)
    assert not (cut / "checkpoint").exists()
    stage(kind, *inputs, cut)
    assert [step for step, _ in curves(cut)] == [step for step, _ in curves(unbroken)]
    files = [out / "checkpoint/model.safetensors" for out in (unbroken, again, cut)]
    first, *others = (arrays(**load_file(file)) for file in files)
    repeated, resumed = (distance(weights, first) for weights in others)
    report.figure(another_whole_run=repeated)
    report.bound("resumed", resumed, 10 * repeated)


def lm_head(report: Report) -> None:
    """At a 4B model's head and the paper's longest answer."""
    from own_process import in_a_process

    from tests.gpu.lm_head import measure

    sizes = (32_768, 4_096, 151_936) if report.cuda else (512, 32, 2_048)
    ours, products = (in_a_process(measure, n, sizes, report.device) for n in ("ours", "gemms"))
    report.figure(seconds=ours["seconds"])
    report.goal("gb", ours["peak_mb"] / 1e3, at_most=5.0)
    report.goal("times_the_products", ours["seconds"] / products["seconds"], at_most=1.4)
    peer = in_a_process(measure, "peer", sizes, report.device)
    report.figure(peer_gb=peer["peak_mb"] / 1e3, peer_seconds=peer["seconds"])


def large_checkpoint(report: Report, model: str = "0.6b") -> argparse.Namespace:
    """Options of bench_rl_step with a random Qwen3 (toy size without CUDA), made once."""
    import bench_rl_step as bench

    words = "--context 24 --steps 1 --budget 512"
    if report.cuda:
        words = f"--model {model} --context 8192 --device cuda --steps 1 --prompts 8"
    options, folder = bench.parsed(words.split()), report.shared / model
    options.checkpoint = folder / "checkpoint"
    if not options.checkpoint.exists():
        bench.make_checkpoint(folder, options)
    return options


def rl_step(report: Report) -> None:
    """Live tokens a second of a rollout's updates, against stock GRPOTrainer on the same."""
    import bench_rl_step as bench
    from own_process import in_a_process

    from klear.training import sizing

    options = large_checkpoint(report)
    live = bench.token_counts(options, 1)[0]
    ours = in_a_process(bench.measure, "ours", options)
    report.figure(tokens_per_s=live / ours["seconds"], gb=ours["peak_mb"] / 1e3)
    peer = in_a_process(bench.measure, "peer", options)
    report.figure(peer_tokens_per_s=live / peer["seconds"], peer_gb=peer["peak_mb"] / 1e3)
    report.goal("times_as_fast", peer["seconds"] / ours["seconds"], at_least=2.0)
    report.goal("of_its_memory", ours["peak_mb"] / peer["peak_mb"], at_most=0.6)
    # gradients and AdamW's two states, 12 bytes a parameter, are in both peaks
    state = 12 * sizing.facts_of_model(str(options.checkpoint)).parameters / 2**20  # type: ignore[union-attr]
    report.figure(state_gb=state / 1e3)
    report.figure(of_its_rest=(ours["peak_mb"] - state) / (peer["peak_mb"] - state))


def sft_steps(
    report: Report, length: int, rows: int, steps: int, model: str = "0.6b",
    settings: dict[str, Any] | None = None, **runtime: Any,
) -> Any:  # fmt: skip
    """(facts of the model, seconds a step, highest bytes in tensors) of so many steps of `rows`
    sequences of `length` tokens; the first step is left out of the time."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback

    from klear.configs.settings.training import SFTSettings, TrainRuntime
    from klear.training import models, sft, sizing, speedups
    from klear.training.launch.jobs import SFTJob

    base = large_checkpoint(report, model).checkpoint
    facts = sizing.facts_of_model(str(base))
    assert facts
    ids = torch.randint(300, facts.vocabulary, (rows * (steps + 1), length)).tolist()
    columns = {"input_ids": ids, "labels": ids, "length": [length] * len(ids)}
    data = Dataset.from_dict(columns | {"tokens": columns["length"]})
    s = SFTSettings(
        **(settings or {}), epochs=1, batch_tokens=rows * length, max_length=length,
        checkpoint_steps=10**6,
        runtime=TrainRuntime(precision="bf16" if report.cuda else "fp32", threads=1, **runtime),
    )  # fmt: skip
    job = SFTJob(out=report.scratch, base=base, examples=base, settings=s)
    loaded, chat = models.load_to_train(base, s)
    trainer, marks = sft.build_trainer(job, loaded, chat.tokenizer, data), []
    speedups.speed_up(trainer, job)

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if report.cuda:
                torch.cuda.synchronize()
            marks.append(time.perf_counter())

    trainer.add_callback(Clock())
    trainer.train()
    highest = torch.cuda.max_memory_allocated() if report.cuda else 0
    return facts, (marks[-1] - marks[0]) / steps, highest


SWITCHES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # settings of the runtime, and what they need
    "plain": ({}, ()),
    "half_recomputed": ({"checkpoint_every": 2}, ()),
    "not_recomputed": ({"gradient_checkpointing": False}, ()),
    "liger": ({"use_liger_kernel": True}, ("cuda", "liger_kernel")),
    "compiled": ({"torch_compile": True}, ("cuda",)),
    "packed": ({"attention": "flex_attention"}, ("cuda", "triton")),
    "compiled_not_recomputed": (
        {"torch_compile": True, "gradient_checkpointing": False},
        ("cuda",),
    ),
    "liger_not_recomputed": (
        {"use_liger_kernel": True, "gradient_checkpointing": False},
        ("cuda", "liger_kernel"),
    ),
}
MFU = {"0.6b": 0.25, "8b-layers": 0.45}  # goals of the combinations


def sft_speed(model: str, name: str, report: Report) -> None:
    """SFT tokens a second, and the share of the card's arithmetic as `klear plan` counts it: six
    operations a parameter and token."""
    if not report.cuda and model != "0.6b":
        raise Skip("without CUDA all sizes are the toy one")
    import torch

    from klear.configs.settings.base import read_catalogue

    length, rows, steps = (8_192, 8, 3) if report.cuda else (64, 4, 2)
    runtime = {"micro_batch_tokens": 2 * length} | SWITCHES[name][0]
    packing = {"packing": name == "packed"}
    facts, seconds, highest = sft_steps(report, length, rows, steps, model, packing, **runtime)
    report.figure(tokens_per_s=length * rows / seconds, gb=highest / 1e9)
    if report.cuda:
        card = torch.cuda.get_device_name()
        cards = {n: c for n, c in read_catalogue("gpus").items() if n.partition("-")[0] in card}
        peak = max((c["tflops"] * 1e12 for c in cards.values()), default=math.nan)
        goal = {"at_least": MFU[model]} if name.endswith("_not_recomputed") else {}
        report.goal("mfu", 6 * facts.parameters * length * rows / seconds / peak, **goal)


def peak_memory(checkpointing: bool, report: Report) -> None:
    """What `training.sizing` predicts for a step against what the allocator saw, within 15 %."""
    from klear.training import sizing

    length, rows = (8_192, 2) if checkpointing else (4_096, 1)
    facts, _, highest = sft_steps(
        report, length, rows, 1, micro_batch_tokens=length, gradient_checkpointing=checkpointing
    )
    training = sizing.Training(facts, sharded=False, checkpointing=checkpointing)
    parts = training.parts(length, several=True)
    report.figure(predicted_gb=sum(parts.values()) / 1e9, measured_gb=highest / 1e9)
    report.bound("off_by", abs(sum(parts.values()) / highest - 1), 0.15)


CASES = [
    Case("loss_gradients", loss_gradients, 60),
    Case("fused_head", fused_head, 60),
    *(Case(name, partial(compare_updates, name), 120, UPDATES[name][-1]) for name in UPDATES),
    Case("packed_is_padded[sdpa]", partial(packed_is_padded, "sdpa"), 90),
    *(
        Case(f"packed_is_padded[{name}]", partial(packed_is_padded, name), 90, ("cuda", module))
        for name, module in ATTENTIONS.items()
    ),
    *(Case(f"kill_and_resume[{k}]", partial(kill_and_resume, k), 150) for k in ("rl", "sft")),
    Case("lm_head", lm_head, 120, alone=True),
    *(
        Case(f"sft_speed[{model},{name}]", partial(sft_speed, model, name), 120, needs, True)
        for model in MFU
        for name, (_, needs) in SWITCHES.items()
    ),
    *(
        Case(f"peak_memory[{name}]", partial(peak_memory, on), 90, ("cuda",), True)
        for name, on in (("checkpointing", True), ("whole", False))
    ),
    Case("rl_step", rl_step, 280, alone=True),
]
