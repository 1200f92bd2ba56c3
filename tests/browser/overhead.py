"""What a run costs that finds every stage in the store, beyond what starting its process costs."""

import re
import resource
import time
from dataclasses import dataclass
from datetime import datetime

from cockpit import Cockpit, eventually

TRIES = 5
START = "import flows.run, tasks.tracking"  # what `klear run` imports before its clock starts


@dataclass(frozen=True)
class Overhead:
    """In seconds."""

    stages: int
    cpu: float
    """Of the process, without that of one which only imports."""
    wall: float
    """By the run's own clock."""
    a_stage: float
    """Wall, from the first stage's begin to the last one's end."""

    def __str__(self) -> str:
        return (
            f"{self.stages} cached stages: {self.cpu:.2f} CPU s and {self.wall:.1f} s beyond "
            f"process start, {1000 * self.a_stage:.1f} ms a stage"
        )

    def best(self, other: "Overhead") -> "Overhead":
        """Of two runs, figure by figure."""
        figures = (min(getattr(self, n), getattr(other, n)) for n in ("cpu", "wall", "a_stage"))
        return Overhead(self.stages, *figures)


def overhead_of(place: Cockpit, *run: str, seconds: float, a_stage: float) -> Overhead:
    """Of `klear run …`, all of which is in the store: the best of a few runs, or of as many as it
    takes to be below both bounds. A stalled machine makes a run slow; only slow code makes all."""
    started = _cpu_of(place, "-c", START)
    found = _once(place, started, *run)
    for _ in range(1, TRIES):
        if found.cpu <= seconds and found.a_stage <= a_stage:
            break
        found = found.best(_once(place, started, *run))
    return found


def _once(place: Cockpit, started: float, *run: str) -> Overhead:
    cpu, began = _children_cpu(), time.monotonic()
    said = place.klear("run", *run)
    cpu, took = _children_cpu() - cpu, time.monotonic() - began
    cached = re.search(r"done in (\d+) s: every stage cached \((\d+)\)", said)
    assert cached, said
    flow_run, stages = place.runs()[0]["id"], int(cached[2])
    # Prefect hears of tasks in its own time.
    eventually(lambda: sum(bool(t["end_time"]) for t in place.tasks_of(flow_run)) == stages)
    tasks = place.tasks_of(flow_run)
    begins = [datetime.fromisoformat(t["start_time"]) for t in tasks]
    ends = [datetime.fromisoformat(t["end_time"]) for t in tasks]
    each = (max(ends) - min(begins)).total_seconds() / stages
    return Overhead(stages, cpu - started, min(took, float(cached[1])), each)


def _cpu_of(place: Cockpit, *arguments: str) -> float:
    before = _children_cpu()
    place.python(*arguments)
    return _children_cpu() - before


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
