"""Generation in the child process: requests from a file, samples to a journal, one at a time.

Files of a job, all below `job.out`: the requests are JSON lines of `Request`; finished samples go
to `.resume/samples.jsonl`; progress to `.resume/progress.json`. A second run of the same job
answers what the journal lacks.
"""

import time
from pathlib import Path

from training.engines.interface import Request
from training.engines.journal import Journal
from training.engines.make import make_local_engine
from training.jobs import GenerateJob
from training.progress_files import ProgressFile


def journal_path(out: Path) -> Path:
    return out / ".resume" / "samples.jsonl"


def read_requests(path: Path) -> list[Request]:
    with path.open("rb") as lines:
        return [Request.model_validate_json(line) for line in lines]


def generate_job(job: GenerateJob) -> dict[str, float]:
    """Answer every request of the job; returns what was generated in this run and how fast."""
    requests = read_requests(job.requests)
    progress = ProgressFile(job.out)
    new_samples = new_tokens = 0
    with Journal(journal_path(job.out)) as journal:
        missing = sum((r.problem_id, r.index) not in journal for r in requests)
        progress.report(len(requests) - missing, len(requests), "starting the engine")
        if not missing:
            return {"new_samples": 0.0, "new_tokens": 0.0, "tokens_per_second": 0.0}
        with make_local_engine(job.engine, job.sampling) as engine:
            began = time.monotonic()
            for batch in engine.batches(requests):
                todo = [r for r in batch if (r.problem_id, r.index) not in journal]
                if not todo:
                    continue
                for sample in engine.answer(batch if engine.whole_batches else todo):
                    new_samples += 1
                    new_tokens += sample.completion_tokens
                    journal.append(sample)
                    speed = new_tokens / max(time.monotonic() - began, 1e-9)
                    progress.report(len(journal), len(requests), f"{speed:.0f} tok/s")
    return {
        "new_samples": float(new_samples),
        "new_tokens": float(new_tokens),
        "tokens_per_second": new_tokens / max(time.monotonic() - began, 1e-9),
    }
