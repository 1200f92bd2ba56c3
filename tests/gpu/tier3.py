"""T3, two cards: the updates of one card, on copies and on shards (FSDP2), over NCCL.

NCCL weight transfer to a vLLM server, and a server killed in it, have no part that runs without two
cards; they are not written yet.
"""

from functools import partial

from tests.gpu.check import Case, Report


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


CASES = [
    Case(f"{name}_is_one_card", partial(update_of_one_card, sharded), 600, ("2 GPUs",), alone=True)
    for name, sharded in (("ddp", False), ("fsdp2", True))
]
