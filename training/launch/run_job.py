"""`python -m klear.training.launch.run_job JOB.json`: one training or generation job, in a process,
with the files of `result_files`. Running the same job again resumes it."""

import faulthandler
import gc
import json
import os
import pkgutil
import signal
import sys
from pathlib import Path

from dotenv import load_dotenv

from ...configs.files import replace_text
from .jobs import JOB, GenerateJob, Job, RLJob, SFTJob
from .ranks import join_run, processes_here, rank, world_size
from .result_files import RESULT

WORK = {
    "base": "klear.training.base:create_base",
    "sft": "klear.training.sft:run_sft",
    "rl": "klear.training.rl.train:run_rl",
    "generate": "klear.training.engines.generate:generate_job",
}
# Transformers and TRL import them where they are installed: up to a third of the start of a job.
NOT_NEEDED = ("mlflow", "scipy", "sklearn", "vllm")


def main(arguments: list[str]) -> int:
    faulthandler.register(signal.SIGUSR2)  # sent before a job that hangs is killed
    job, work = JOB.validate_json(Path(arguments[0]).read_bytes()), run
    load_dotenv(Path(__file__).with_name("defaults.env"))  # of what is not set
    join_run(job.out)
    job.out.mkdir(parents=True, exist_ok=True)
    if world_size() > 1:
        from torch.distributed.elastic.multiprocessing.errors import record

        work = record(run)  # so that the launcher prints the error too
    result = work(job)
    if not rank():
        replace_text(job.out / RESULT, json.dumps(result))
    return 0


def run(job: Job) -> dict[str, float]:
    """Run `job` in this process; torch is imported here, and only what the job needs."""
    engine = job.settings.engine if isinstance(job, RLJob) else ""
    engine = job.engine.kind if isinstance(job, GenerateJob) else engine
    trains = isinstance(job, SFTJob | RLJob)
    hide_unneeded(vllm=engine.startswith("vllm"), peft=not trains or job.settings.lora is not None)
    gc.disable()  # what is imported stays: looking for garbage in it takes a tenth of the start
    if trains:
        _limit_threads(job.settings.runtime.threads)
    work = pkgutil.resolve_name(WORK[job.kind])
    gc.freeze()
    gc.enable()
    return work(job)


def hide_unneeded(*, vllm: bool = False, peft: bool = False) -> None:
    """Let this process find no library installed that its work has no use for."""
    for name in (*(() if vllm else NOT_NEEDED), *(() if peft else ("peft",))):
        sys.modules[name] = None  # type: ignore[assignment]


def _limit_threads(threads: int) -> None:
    """`threads` CPU threads for torch; 0: OMP_NUM_THREADS, or a share of the cores that this
    process and those beside it may use: for several the launcher sets the variable to 1, unasked.
    """
    import torch

    beside = processes_here()
    if threads or beside > 1 or not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // beside))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
