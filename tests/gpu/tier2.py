"""T2, one card: vLLM beside the trainer, which sleeps during updates, and served. Needs the lock's
vLLM."""

import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.gpu.check import Case, Report

TYPES: dict[str, tuple[float, dict[str, Any]]] = {
    "fp32": (1e-3, {"precision": "fp32"}),
    "bf16": (0.1, {"precision": "bf16"}),
    "bf16, fp32 head": (0.1, {"precision": "bf16", "fp32_head": True}),
    "fp16": (0.02, {"precision": "fp16"}),
}
"""What trainer and sampler compute in; the mean |log π_trainer − log π_sampler| that is rounding
then, and the settings."""


def vllm_files(report: Report):
    """(checkpoint with heads that vLLM has kernels for, problems)."""
    from tests.gpu.tier0 import small_checkpoint
    from tests.training.conftest import SMALL, small_base

    files = small_checkpoint(report.scratch)
    sizes = {"hidden": 128, "head_dim": 64, "max_positions": 256, "initializer_range": 0.3}
    folder = report.scratch / "vllm"
    folder.mkdir()
    base = small_base(folder, files["examples"], SMALL.model_copy(update=sizes))
    return base, files["problems"]


def train_with_vllm(
    engine: str, options: dict[str, Any], checkpoint: Path, problems: Path, out: Path
) -> None:
    """Two rollouts of four updates that move the policy far; for a process of its own."""
    from tests.training import killed_child

    names = ("precision", "vllm_server_url")
    engine_options = {name: options[name] for name in names if name in options}
    runtime = killed_child.RUNTIME.model_copy(update=engine_options)
    what = {"fp32_head": options.get("fp32_head", False), "runtime": runtime}
    with mock.patch.object(killed_child, "RL", killed_child.RL.model_copy(update=what)):
        killed_child.train(engine, checkpoint, problems, out)


def check_mismatch(report: Report, out: Path, bound: float) -> None:
    """The second rollout was sampled from the updated policy, which is another by far."""
    from klear.training.launch.result_files import METRICS, read_lines

    first, second = (line["metrics"] for line in read_lines(out / METRICS))
    moved = first["ratio/log_max"] - first["ratio/log_min"]
    report.figure(moved=moved, tokens_per_s=second["tokens_per_second"])
    for name, line in (("mismatch_before", first), ("mismatch_after", second)):
        report.bound(name, line["mismatch/logp_difference"], bound)
    assert moved > 1.0, "the policy hardly moved"


def vllm_colocate(types: str, report: Report) -> None:
    """The weights change the answers; the memory is free at the end."""
    import torch
    from own_process import in_a_process

    base, problems = vllm_files(report)
    (bound, options), out = TYPES[types], report.scratch / "out"
    before, total = torch.cuda.mem_get_info()
    in_a_process(train_with_vllm, "vllm_colocate", options, base, problems, out)
    report.bound("gb_not_freed", (before - torch.cuda.mem_get_info()[0]) / 1e9, total / 100e9)
    check_mismatch(report, out, bound)


def vllm_served(report: Report) -> None:
    """A server over HTTP answers every request, and an answer is cut at its limit."""
    from vllm_server import VLLMServer

    from klear.configs.settings.engines import EngineSettings, Sampling
    from klear.training.engines.endpoint import EndpointEngine
    from tests.training.test_engines_local import requests

    base, _ = vllm_files(report)
    with VLLMServer(base, report.scratch / "log") as server:
        settings = EngineSettings(base_url=server.url, model="tiny-teacher", api_key_env="")
        began = time.perf_counter()
        samples = list(EndpointEngine(settings, Sampling(max_tokens=16)).answer(requests(8)))
        seconds = time.perf_counter() - began
    tokens = float(sum(s.completion_tokens for s in samples))
    report.figure(tokens=tokens, tokens_per_s=tokens / seconds)
    assert len(samples) == 8
    assert all(1 <= s.completion_tokens <= 16 for s in samples)


NEEDS = ("cuda", "vllm")
CASES = [
    *(
        Case(f"vllm_colocate[{types}]", partial(vllm_colocate, types), 400, NEEDS, alone=True)
        for types in TYPES
    ),
    Case("vllm_served", vllm_served, 400, NEEDS, alone=True),
]
