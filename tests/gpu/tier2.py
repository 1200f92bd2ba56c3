"""T2, one card: vLLM beside the trainer, which sleeps during updates, and served. Needs the lock's
vLLM. An fp32 head and fp16 are no settings yet, so nothing here measures them."""

from functools import partial
from unittest import mock

from tests.gpu.check import Case, Report

MISMATCH = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean |log π_trainer − log π_sampler| that is still rounding."""


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


def train_beside_vllm(dtype: str, checkpoint, problems, out) -> None:
    """Two rollouts of four updates that move the policy far; in a process of its own."""
    from tests.training import killed_child

    runtime = killed_child.RUNTIME.model_copy(update={"bf16": dtype == "bfloat16"})
    settings = killed_child.RL.model_copy(update={"runtime": runtime})
    with mock.patch.object(killed_child, "RL", settings):
        killed_child.train("vllm_colocate", checkpoint, problems, out)


def vllm_colocate(dtype: str, report: Report) -> None:
    """The second rollout is sampled from the updated policy; the memory is free at the end."""
    import torch
    from own_process import in_a_process

    from tests.training.test_sigkill import curves

    base, problems = vllm_files(report)
    before, whole = torch.cuda.mem_get_info()
    in_a_process(train_beside_vllm, dtype, base, problems, report.scratch / "out")
    (_, first), (_, second) = curves(report.scratch / "out")
    report.figure(moved=first["ratio/log_max"] - first["ratio/log_min"])
    for name, line in (("mismatch_before", first), ("mismatch_after", second)):
        report.bound(name, line["mismatch/logp_difference"], MISMATCH[dtype])
    report.bound("gb_not_freed", (before - torch.cuda.mem_get_info()[0]) / 1e9, whole / 100e9)
    assert first["ratio/log_max"] - first["ratio/log_min"] > 1.0, "the policy hardly moved"


def vllm_served(report: Report) -> None:
    """A server over HTTP answers every request, and an answer is cut at its limit."""
    from vllm_server import VLLMServer

    from klear.configs.settings.engines import EngineSettings, Sampling
    from klear.training.engines.endpoint import EndpointEngine
    from tests.training.test_engines_local import requests

    base, _ = vllm_files(report)
    with VLLMServer(base, report.scratch / "log") as server:
        settings = EngineSettings(base_url=server.url, model="tiny-teacher", api_key_env="")
        samples = list(EndpointEngine(settings, Sampling(max_tokens=16)).answer(requests(8)))
    report.figure(tokens=float(sum(s.completion_tokens for s in samples)))
    assert len(samples) == 8
    assert all(1 <= s.completion_tokens <= 16 for s in samples)


NEEDS = ("cuda", "vllm")
CASES = [
    *(
        Case(f"vllm_colocate[{dtype}]", partial(vllm_colocate, dtype), 400, NEEDS, alone=True)
        for dtype in MISMATCH
    ),
    Case("vllm_served", vllm_served, 400, NEEDS, alone=True),
]
