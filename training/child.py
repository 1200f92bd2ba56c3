"""`python -m training.child JOB.json`: one training or generation job in a process of its own.

The parent reads `out/.resume/progress.json` and `out/logs/metrics.jsonl` while it runs, and
`out/.resume/result.json` (name → number) once it ended. Exit code 0: done; 1: failed, with the
traceback on stderr; 2: no or a wrong job file. Running the same job again resumes it. Of several
processes of one run (`training.node` starts them) the first writes these files.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from training.jobs import BaseJob, GenerateJob, RLJob, SFTJob, read_job
from training.rank import join_the_run, processes_here, rank, tell_failure

QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(arguments: list[str]) -> int:
    """Run the job of one file; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m training.child JOB.json", file=sys.stderr)
        return 2
    try:
        job = read_job(Path(arguments[0]))
    except (OSError, ValidationError) as error:
        print(f"cannot read the job {arguments[0]}: {error}", file=sys.stderr)
        return 2
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    join_the_run(job.out)
    try:
        result = run(job)
    except Exception as error:
        tell_failure(error)
        return 1
    if rank():  # the first process tells for all
        return 0
    path = job.out / ".resume" / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return 0


def run(job: BaseJob | SFTJob | RLJob | GenerateJob) -> dict[str, float]:
    """Run `job` in this process; torch is imported here, and only what the job needs."""
    job.out.mkdir(parents=True, exist_ok=True)
    if isinstance(job, (SFTJob, RLJob)):
        _limit_threads(job.settings.runtime.threads)
    return _runner(job)()


def _runner(job: BaseJob | SFTJob | RLJob | GenerateJob) -> Callable[[], dict[str, float]]:
    if isinstance(job, BaseJob):
        from training.base import create_base

        return lambda: create_base(job)
    if isinstance(job, SFTJob):
        from training.sft import run_sft

        return lambda: run_sft(job)
    if isinstance(job, RLJob):
        from training.rl import run_rl

        return lambda: run_rl(job)
    from training.engines.local import generate_job

    return lambda: generate_job(job)


def _limit_threads(threads: int) -> None:
    """`threads` CPU threads for torch; 0: OMP_NUM_THREADS, or a core each, as many as this process
    and those beside it may use (a Slurm job or a container has its own).

    For several processes the launcher sets OMP_NUM_THREADS to 1 where nobody has: no wish of ours.
    """
    import torch

    beside = processes_here()
    if threads or beside > 1 or not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) // beside))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
