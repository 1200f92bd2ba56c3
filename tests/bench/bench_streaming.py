"""Peak memory of collect, dedup and decontaminate as the rows grow: one file, three sizes.

    python tests/bench/bench_streaming.py [--megabytes N] [--format jsonl|parquet …]

The file is generated: rows of about 1 kB, a tenth of them repeats, one in a hundred with an n-gram
of a benchmark. Each stage runs in a process of its own, whose peak is `ru_maxrss`; growth is that
from a quarter of the size to the size, by million rows.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from klear.configs.settings.data import DecontaminateSettings, DedupSettings
from klear.configs.settings.sources import CollectSettings, Source
from klear.tasks.data.collect import collect
from klear.tasks.data.decontaminate import decontaminate
from klear.tasks.data.dedup import dedup
from klear.tasks.store.store import Artifact
from klear.tests.bench.own_process import in_a_process

STAGES = ("collect", "dedup", "decontaminate")
WANTED = 7_000_000  # rows of the largest public sources
SHARES = (4, 2, 1)
ITEM = "Nine rooks are placed at random on a torus board of nine rows; how often is none attacked?"
WORDS = ("Let", "find", "sum", "triangle", "integer", "digits", "prime", "circle", "value", "real")
GROUP = 20_000


def rows(count: int) -> Iterator[dict[str, str]]:
    """Problems whose prompts all differ, but for every tenth."""
    chance = random.Random(0)
    solution = " ".join(chance.choices(WORDS, k=110))
    for i in range(count):
        number = chance.randrange(i) if i % 10 == 9 else i
        words = " ".join(WORDS[(number >> shift) % len(WORDS)] for shift in range(24))
        planted = ITEM if number % 100 == 5 else ""
        yield {"problem": f"Problem {number}: {words} {planted}", "answer": f"{number}",
               "solution": f"{number} {solution}"}  # fmt: skip


def write(path: Path, size: int) -> int:
    """About `size` bytes of rows (as JSON); returns how many."""
    count = size // (sum(len(orjson.dumps(row)) + 1 for row in rows(1000)) // 1000)
    if path.suffix == ".jsonl":
        with path.open("wb") as file:
            file.writelines(orjson.dumps(row) + b"\n" for row in rows(count))
        return count
    some, columns = list[dict[str, str]](), rows(count)
    schema = pa.schema([(name, pa.string()) for name in ("problem", "answer", "solution")])
    with pq.ParquetWriter(path, schema) as writer:
        while some := [row for _, row in zip(range(GROUP), columns, strict=False)]:
            writer.write_table(pa.Table.from_pylist(some, schema))
    return count


def run(stage: str, place: Path, file: Path | None) -> dict[str, float]:
    """One stage below `place`, in this process: its peak, seconds and the rows that it kept."""
    (place / stage).mkdir()
    artifacts = {name: Artifact(stage=name, key=name, digest=name, folder=place / name)
            for name in ("benchmarks", *STAGES)}  # fmt: skip
    began = time.process_time()
    metrics: Mapping[str, float]
    if stage in ("benchmarks", "collect"):
        source = Source(name="s", files=(str(file),))
        settings = CollectSettings(root=str(place), sources=(source,))
        metrics = collect.body(place / stage, settings=settings, seed=0)
    elif stage == "dedup":
        metrics = dedup.body(place / stage, artifacts["collect"], settings=DedupSettings())
    else:
        inputs = artifacts["dedup"], artifacts["benchmarks"]
        metrics = decontaminate.body(place / stage, *inputs, settings=DecontaminateSettings())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"peak_mb": peak, "cpu_s": round(time.process_time() - began, 1), **metrics}


def measure(kind: str, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        items = place / "items.jsonl"
        items.write_text(json.dumps({"problem": ITEM, "answer": "1"}) + "\n")
        in_a_process(run, "benchmarks", place, items)
        count = in_a_process(write, place / f"rows.{kind}", size)
        figures: dict[str, Any] = {"rows": count}
        for stage in STAGES:
            got = in_a_process(run, stage, place, place / f"rows.{kind}")
            figures[stage] = {name: got[name] for name in ("peak_mb", "cpu_s", "kept")}
    print(kind, size, json.dumps(figures), file=sys.stderr, flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of the largest file")
    parser.add_argument("--format", choices=("jsonl", "parquet"), action="append")
    chosen = parser.parse_args()
    result: dict[str, Any] = {"bench": "streaming", "unit": "MB of peak memory by million rows"}
    for kind in chosen.format or ("jsonl", "parquet"):
        sizes = [measure(kind, chosen.megabytes * 10**6 // share) for share in SHARES]
        few, many = sizes[0], sizes[-1]
        for stage in STAGES:
            peaks = [size[stage]["peak_mb"] for size in sizes]
            growth = 1e6 * (peaks[-1] - peaks[0]) / (many["rows"] - few["rows"])
            result[f"{kind}/{stage}"] = {
                "rows": [size["rows"] for size in sizes],
                "peak_mb": peaks,
                "growth": round(growth, 1),
                "at_7_million_mb": round(peaks[-1] + growth * (WANTED - many["rows"]) / 1e6),
                "cpu_s": many[stage]["cpu_s"],
            }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
