"""Load on files: dedup of a million rows, a store of 5,000 results.

    python tests/bench/load_data.py [--part dedup|store …]

Each part at a quarter of its size and at its size; what is measured says `load_measured`.
"""

import random
import tempfile
import time
from collections.abc import Callable, Sized
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from load_measured import run as run_load

from klear.configs.loading import load_profile
from klear.configs.settings.base import Settings
from klear.configs.settings.data import DedupSettings
from klear.configs.settings.pipeline import STAGES
from klear.eval.records import Problem
from klear.eval.records.tables import arrow_schema
from klear.flows.cli.store import store_lines
from klear.flows.plan import plan
from klear.tasks.data.dedup import dedup
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.store import gc, lineage
from klear.tasks.store.store import Artifact, Store

HITS = 200


class Knobs(Settings):
    number: int = 0


def dedup_rows(rows: int) -> dict[str, float]:
    """The whole dedup stage, parquet in and parquet out; a tenth of the rows are repeats."""
    chosen = random.Random(0)
    schema = arrow_schema(Problem)[0]
    with tempfile.TemporaryDirectory() as folder:
        problems, out = Path(folder) / "in", Path(folder) / "out"
        problems.mkdir()
        out.mkdir()
        with pq.ParquetWriter(problems / "kept.parquet", schema) as writer:
            for start in range(0, rows, 10_000):
                numbers = [
                    chosen.randrange(max(i, 1)) if i % 10 == 9 else i
                    for i in range(start, min(start + 10_000, rows))
                ]
                writer.write_table(pa.Table.from_pylist([_row(n) for n in numbers], schema))
        began = time.process_time()
        metrics = dict(dedup.body(out, Artifact.of_folder(problems), settings=DedupSettings()))
        took = time.process_time() - began
    return {"dedup_cpu_s": took, "kept": metrics["kept"]}


def _row(number: int) -> dict[str, object]:
    prompt = f"Problem {number}: find the sum of {number} and {number % 97}, " + "please " * 20
    return {"id": f"{number:016x}", "domain": "math", "prompt": prompt, "answer": str(number),
            "source": f"s{number % 5}", "judgeable": True}  # fmt: skip


@stage(version=1)
def small(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text(str(settings.number))
    return {"rows": 1.0}


def store(results: int) -> dict[str, float]:
    """Publish results of every stage one by one; then cache hits, what the store commands read,
    and the plan of a run; in CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        here, stages = Store(Path(folder)), [small.named(name) for name in STAGES]

        def run_some(count: int) -> float:
            began = time.process_time()
            for number in range(count):
                stages[number % len(stages)](settings=Knobs(number=number))
            return time.process_time() - began

        with active(Run(store=here)):
            publish, hits = run_some(results), run_some(min(results, HITS))
        figures, times = {}, {}
        looks: dict[str, Callable[[], Sized]] = {
            "list": lambda: lineage.results(here),
            "verify": lambda: list(gc.damaged(here)),
            "gc": lambda: gc.find_garbage(here, 7.0)[0],
            "status": lambda: list(store_lines(here)),
            "plan": lambda: plan(load_profile("tiny"), Run(store=here)),
        }
        for name, look in looks.items():
            began = time.process_time()
            figures[name] = len(look())
            times[f"{name}_cpu_s"] = time.process_time() - began
    assert figures["list"] == figures["verify"] == results
    assert figures["status"] == min(results, len(STAGES))
    return {"publish_cpu_ms": 1000 * publish / max(results, 1),
            "hit_cpu_ms": 1000 * hits / max(min(results, HITS), 1), **times}  # fmt: skip


if __name__ == "__main__":
    run_load("files", {"dedup": (dedup_rows, 1_000_000), "store": (store, 5_000)})
