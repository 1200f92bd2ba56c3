"""Exact removal of repeated queries, parquet in and verdicts out, one core.

    python tests/bench/bench_exact_dedup.py [--rows N]

Peer: the same rule in plain Python, a set of `normalise_prompt` over the prompt column read with
pyarrow. Both must find the same rows. Also printed: the whole stage, which writes what is kept
and what is rejected. CPU seconds.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from real_documents import cpu_seconds, documents, write_problems  # noqa: E402

from configs.data_stages import DedupSettings  # noqa: E402
from eval.records import normalise_prompt  # noqa: E402
from tasks.dedup import KEPT, dedup, find_duplicates  # noqa: E402
from tasks.store import Artifact  # noqa: E402


def ours(table: Path) -> set[int]:
    with tempfile.TemporaryDirectory() as scratch:
        verdicts = find_duplicates(table, Path(scratch), DedupSettings())
    return set(np.flatnonzero(verdicts.kind != KEPT).tolist())


def plain_python(table: Path) -> set[int]:
    seen: set[str] = set()
    repeats: set[int] = set()
    for row, text in enumerate(pq.read_table(table, columns=["prompt"]).column(0).to_pylist()):
        query = normalise_prompt(text)
        if query in seen:
            repeats.add(row)
        seen.add(query)
    return repeats


def whole_stage(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as out:
        dedup.body(Path(out), Artifact.of_folder(folder), settings=DedupSettings())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="documents")
    rows = parser.parse_args().rows
    pa.set_cpu_count(1)
    texts, kind = documents(rows)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "kept.parquet"
        write_problems(table, texts[:100])
        ours(table)  # compiles, once a machine
        write_problems(table, texts)
        exact, repeats = cpu_seconds(lambda: ours(table), repeats=3)
        peer, expected = cpu_seconds(lambda: plain_python(table), repeats=2)
        stage, _ = cpu_seconds(lambda: whole_stage(Path(folder)), repeats=2)
    if repeats != expected:
        raise SystemExit("other rows than the plain rule finds")
    print(f"{len(repeats)} repeats; the whole stage, writing too: {rows / stage:,.0f} documents/s")
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    result = {
        "bench": "exact_dedup",
        "ours": rows / exact,
        "peer": {"a set of normalised strings in Python": rows / peer},
        "unit": "documents/s",
        "ratio": peer / exact,
        "setup": f"{rows} documents ({kind}, {megabytes:.1f} MB), prompt column of a parquet table "
        f"in, verdicts out, one core, CPU s; the whole stage: {rows / stage:,.0f} documents/s",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
