"""Cells of an ablation beside each other: worker processes that take one cell after another.

Processes and not threads: only a main thread can be watched, cancelled and interrupted. Two cells
that need the same stage wait for each other at its lock, so the next cell to start is the one that
shares least with those that run. Each trains on its share of the cores, for threads that outnumber
them wait for each other. A worker's stages show on the display of this process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.machine import load_machine
from flows.ablation_cell import label
from flows.relayed_display import replay
from tasks.child import environment
from tasks.display import Display
from tasks.store import Artifact
from tasks.supervise import supervised

COMMAND = [sys.executable, "-P", "-m", "flows.ablation_worker"]
POLL_S = 0.1
GRACE_S = 8.0  # for a cell to say that it ends: it is a run of its own in Prefect and MLflow
PATIENCE_S = 60.0  # with a supervisor that was told to end its worker
TAIL_LINES = 15


class CellFailed(RuntimeError):
    """A cell ended with an error; those beside it were finished first."""


@dataclass(frozen=True)
class Job:
    """A cell as it is told to a worker."""

    name: str
    """Of the experiment, or its file."""
    profile: str
    arm: str
    seed: int
    parent: str
    """The MLflow run that the cell belongs to."""

    @property
    def label(self) -> str:
        return label(self.arm, self.seed)


def in_parallel(
    jobs: Mapping[Job, Set[str]], concurrent: int, display: Display
) -> dict[str, tuple[Artifact, ...]]:
    """(evaluation, model) of every job by label; `jobs` says which stages each needs.

    Raises CellFailed with the words of the first cell that failed.
    """
    pending, failures = dict(jobs), list[str]()
    made: dict[str, tuple[Artifact, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="klear-ablation-") as scratch:
        several = min(concurrent, len(jobs))
        workers = [_Worker(i, Path(scratch), _environment(several)) for i in range(several)]
        try:
            while (pending and not failures) or any(w.job for w in workers):
                for worker in workers:
                    if worker.job is None and pending and not failures:
                        job = _next(pending, [jobs[w.job] for w in workers if w.job])
                        del pending[job]
                        worker.give(job)
                    if worker.job is not None:
                        over = worker.is_over()  # before its last words are shown, lest one is lost
                        replay(worker.events, display, worker.job.label)
                        if over:
                            worker.take(made, failures)
                time.sleep(POLL_S)
        finally:
            for worker in workers:
                worker.ask_to_end()
            for worker in workers:
                worker.wait()
    if failures:
        raise CellFailed("\n".join(failures))
    return made


def _next(pending: Mapping[Job, Set[str]], busy: list[Set[str]]) -> Job:
    """The job that shares the fewest stages with those under way; of equals the first."""
    taken = set().union(*busy)
    return min(pending, key=lambda job: len(pending[job] & taken))


class _Worker:
    """One process; its output goes to a log, its stages to a file of events."""

    def __init__(self, number: int, scratch: Path, environment: Mapping[str, str]) -> None:
        self.job: Job | None = None
        self.log = load_machine().logs / f"ablation-worker-{os.getpid()}-{number}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._scratch, self._number, self._jobs = scratch, number, 0
        self.events = _Tail(Path())
        with self.log.open("wb") as file:
            self._process = subprocess.Popen(
                [*supervised(GRACE_S), *COMMAND],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def give(self, job: Job) -> None:
        """Start a cell; the worker is idle."""
        self.job, self._jobs = job, self._jobs + 1
        place = self._scratch / f"{self._number}-{self._jobs}"
        self._result = place.with_suffix(".result")
        self.events = _Tail(place.with_suffix(".events"))
        told = {**asdict(job), "events": str(self.events.path), "result": str(self._result)}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone: `take` says so, with its log
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()

    def is_over(self) -> bool:
        """Whether the cell has a result, or the process can make none any more."""
        return self._result.exists() or self._process.poll() is not None

    def take(self, made: dict[str, tuple[Artifact, ...]], failures: list[str]) -> None:
        """The result of a cell that is over; the worker is idle again."""
        job, self.job = self.job, None
        assert job is not None
        if self._result.exists():
            found = json.loads(self._result.read_text())
            if "error" in found:
                failures.append(f"{job.label}: {found['error']}")
            else:
                made[job.label] = tuple(map(Artifact.model_validate, found["artifacts"]))
        else:
            text = self.log.read_text(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
            failures.append("\n".join([f"{job.label}: its process died; {self.log} ends:", *text]))

    def ask_to_end(self) -> None:
        """A worker without a cell ends by itself; one with a cell is ended with all it started."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if self.job is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class _Tail:
    path: Path
    offset: int = 0

    def lines(self) -> list[bytes]:
        """The whole lines that came since the last call."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.splitlines()


def _environment(workers: int) -> dict[str, str]:
    """Ours, with the code that runs here; a worker's flow runs are its own.

    `OMP_NUM_THREADS` is a worker's share of the cores, unless somebody has set it.
    """
    ours = {n: v for n, v in os.environ.items() if not n.startswith("PREFECT__")}
    share = max(1, len(os.sched_getaffinity(0)) // workers)
    return environment({"OMP_NUM_THREADS": str(share)} | ours)
