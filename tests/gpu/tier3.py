"""T3, two cards: the updates of one card, on copies and on shards (FSDP2), over NCCL; a vLLM server
on the second card that gets the policy's weights over NCCL, and is killed."""

import os
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.gpu.check import Case, Report
from tests.gpu.tier2 import TYPES, check_mismatch, train_with_vllm, vllm_files

SERVER = ("--logprobs-mode", "processed_logprobs", "--api-server-count", "1",
          "--weight-transfer-config", '{"backend": "nccl"}')  # fmt: skip
"""As training/README.md says to start it."""
ON_THE_SECOND = {"CUDA_VISIBLE_DEVICES": "1", "VLLM_SERVER_DEV_MODE": "1"}


def update_of_one_card(sharded: bool, report: Report) -> None:
    """GPPO and SFT in two processes against one, and a resume from their checkpoint."""
    from tests.gpu.tier0 import small_checkpoint
    from tests.training import test_gppo_processes as processes

    files, one, two = small_checkpoint(report.scratch), report.scratch / "1", report.scratch / "2"
    for folder in (one, two):
        folder.mkdir()
    cuda = {"TRAIN_ON_CUDA": "1"}
    alone = processes.run(files, one, 1, **cuda)
    more = processes.SHARDED if sharded else {}
    processes.test_two_processes_make_the_update_of_one(files, alone, two, cuda | more)


def train_at(url: str, base: Path, problems: Path, out: Path) -> None:
    """The stage that asks a server, on the first card; for a process of its own."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    train_with_vllm("vllm_server", TYPES["fp32"][1] | {"vllm_server_url": url}, base, problems, out)


def weights_over_nccl(report: Report) -> None:
    """The server's second rollout is from the updated policy; the weights came card to card."""
    from own_process import in_a_process
    from vllm_server import VLLMServer

    base, problems = vllm_files(report)
    with VLLMServer(base, report.scratch / "log", SERVER, ON_THE_SECOND) as server:
        in_a_process(train_at, server.address, base, problems, report.scratch / "out")
    check_mismatch(report, report.scratch / "out", TYPES["fp32"][0])


def killed_server(report: Report) -> None:
    """A server that dies in a rollout ends the stage; with a new one the same stage goes on."""
    from own_process import in_a_process
    from vllm_server import VLLMServer

    from klear.training.launch.result_files import PROGRESS

    (base, problems), out = vllm_files(report), report.scratch / "out"
    with VLLMServer(base, report.scratch / "log", SERVER, ON_THE_SECOND) as server:
        stage = get_context("spawn").Process(
            target=train_at, args=(server.address, base, problems, out)
        )
        stage.start()
        while stage.is_alive() and not (out / PROGRESS).exists():  # then it asks for a rollout
            time.sleep(0.05)
        server.kill("all")
        stage.join()
        assert stage.exitcode, "the stage ended well without its server"
        server.start()
        server.wait()
        in_a_process(train_at, server.address, base, problems, out)
    assert (out / "checkpoint").exists()


CASES = [
    Case(f"{name}_is_one_card", partial(update_of_one_card, sharded), 600, ("2 GPUs",), alone=True)
    for name, sharded in (("ddp", False), ("fsdp2", True))
] + [
    Case(work.__name__, work, 600, ("2 GPUs", "vllm"), alone=True)
    for work in (weights_over_nccl, killed_server)
]
