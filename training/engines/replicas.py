"""Data parallel generation: copies of a local engine, each with its own GPUs and its own share.

Every replica is a child process with a journal of its own below `.resume/replica-N/`; this process
moves finished samples into the job's journal as they come. A kill loses nothing: what a replica
had finished is taken over when the job starts again, whatever the number of replicas is then.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from configs.engines import EngineRuntime
from eval.records import Sample
from training.engines.figures import Figures, FiguresFile, parts_of
from training.engines.interface import EngineError
from training.engines.journal import Journal
from training.engines.local import journal_path, read_requests, take_over
from training.jobs import GenerateJob, write_job
from training.progress_files import ProgressFile

POLL_S = 0.5
TAIL_CHARACTERS = 2_000


class Tail:
    """The new whole lines of a replica's journal."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def samples(self) -> Iterator[Sample]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield Sample.model_validate(orjson.loads(line))


def generate_in_replicas(job: GenerateJob) -> dict[str, float]:
    """Answer every request of the job with `data_parallel` engines at once."""
    requests = read_requests(job.requests)
    keys = [(r.problem_id, r.index) for r in requests]
    parts = parts_of(job.out, requests)
    count = job.engine.runtime.data_parallel
    progress = ProgressFile(job.out)
    with Journal(journal_path(job.out)) as journal:
        take_over(job.out, journal)
        figures = Figures(job.engine.runtime, journal.everything(), parts)
        # The journal may hold answers beyond these requests: those of earlier rounds.
        done = sum(key in journal for key in keys)
        progress.report(done, len(keys), f"starting {count} engines")
        if done < len(keys):
            points = FiguresFile(job.out, figures)
            with _running(job, count) as processes:
                figures.start()
                tails = [Tail(journal_path(_folder(job, n))) for n in range(count)]
                while (moved := _move(tails, journal, figures)) or any_alive(processes, job):
                    done += moved
                    progress.report(done, len(keys), figures.note())
                    points.now_and_then()
                    time.sleep(POLL_S)
                done += _move(tails, journal, figures)
            points.write()
            progress.report(done, len(keys), figures.note())
    return {
        "new_samples": float(figures.whole.new_samples),
        "new_tokens": float(figures.whole.new_tokens),
        "tokens_per_second": figures.tokens_per_second,
    }


def _move(tails: list[Tail], journal: Journal, figures: Figures) -> int:
    """Take over what the replicas finished; returns how many samples were new."""
    moved = 0
    for tail in tails:
        for sample in tail.samples():
            if (sample.problem_id, sample.index) not in journal:
                journal.append(sample)
                figures.add(sample)
                moved += 1
    return moved


def _folder(job: GenerateJob, number: int) -> Path:
    return job.out / ".resume" / f"replica-{number}"


@contextmanager
def _running(job: GenerateJob, count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The replicas, ended with the block."""
    processes: list[subprocess.Popen[bytes]] = []
    runtime = job.engine.runtime.model_copy(update={"data_parallel": 1})
    engine = job.engine.model_copy(update={"runtime": runtime})
    try:
        for number in range(count):
            folder = _folder(job, number)
            folder.mkdir(parents=True, exist_ok=True)
            share = {"out": folder, "engine": engine, "replica": number, "replicas": count}
            write_job(
                folder / "job.json", job.model_copy(update=share | {"done": journal_path(job.out)})
            )
            with (folder / "child.log").open("ab") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "training.child", str(folder / "job.json")],
                        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                        env={**os.environ, **devices(number, count, runtime)},
                    )
                )  # fmt: skip
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def devices(number: int, count: int, runtime: EngineRuntime) -> dict[str, str]:
    """The GPUs of one replica as its environment; nothing on a machine without GPUs.

    Raises EngineError when there are too few.
    """
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = sorted(Path("/dev").glob("nvidia[0-9]*"), key=lambda p: int(p.name[6:]))
    gpus = known.split(",") if known else [p.name[6:] for p in listed]
    if not gpus:
        return {}
    each = runtime.tensor_parallel * runtime.pipeline_parallel
    if len(gpus) < each * count:
        raise EngineError(
            f"data_parallel={count} with tensor_parallel={runtime.tensor_parallel} and "
            f"pipeline_parallel={runtime.pipeline_parallel} needs {each * count} GPUs; "
            f"there are {len(gpus)}"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * each : (number + 1) * each])}


def any_alive(processes: list["subprocess.Popen[bytes]"], job: GenerateJob) -> bool:
    """Raises EngineError with the end of its log when a replica failed."""
    codes = [p.poll() for p in processes]
    for number, code in enumerate(codes):
        if code:
            log = (_folder(job, number) / "child.log").read_text(errors="replace")
            raise EngineError(
                f"replica {number} ended with code {code}; finished answers are kept; its log "
                f"ends:\n{log[-TAIL_CHARACTERS:]}"
            )
    return None in codes
