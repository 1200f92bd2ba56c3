"""Decontamination, one core, parquet in → verdicts out, against open-r1's loop.

    python tests/bench/bench_decontaminate.py [--rows N]

The corpus: every text of three words or more below ../shared/data (prompts, solutions, code, chains
of thought: >= 150k). Benchmarks: AIME24, AIME25, HMMT Feb 25, MATH-500, LiveCodeBench v5 (2024-08
to 2025-02); n = 9, words split at white space. A verdict is the best covered item with its n-gram
and coverage, or none. The flags must be the peer's on items of nine words or more; rows flagged by
shorter items, which the peer cannot find, are counted apart. The ratio is of CPU seconds of a run.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from open_r1_peer import Benchmarks, N, core_loop
from real_documents import DATA, cpu_seconds, rows_of, write_problems

from klear.tasks.data.contamination import BATCH_ROWS, COLUMNS
from klear.tasks.data.ngrams import Item, NgramIndex

MATH = ("aime24", "aime25", "hmmt_feb_2025", "math500")
V5 = ("2024-08", "2025-02")
FEWEST_WORDS = 3
REPEATS = 3


class Verdicts(NamedTuple):
    """By row: benchmark, item, n-gram, coverage; and the rows that only short items flag."""

    best: dict[int, tuple[str, str, str, float]]
    by_ngram: set[int]


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from texts_in(inside)


def benchmarks() -> Benchmarks:
    prompts = {n: [r["problem"] for r in rows_of(DATA / n / "test.jsonl.gz")] for n in MATH}
    problems = rows_of(DATA / "livecodebench" / "problems_v6.jsonl.gz")
    window = (r for r in problems if V5[0] <= r["contest_date"][:7] <= V5[1])
    return prompts | {"livecodebench_v5": [r["question_content"] for r in window]}


def ours(path: Path, against: Benchmarks) -> Verdicts:
    items = (Item(name, str(i), t) for name, ts in against.items() for i, t in enumerate(ts))
    index = NgramIndex(items, N, "whitespace")
    verdicts = Verdicts({}, set())
    before = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            (batch,) = file.iter_batches(BATCH_ROWS, [group], COLUMNS, use_threads=False)
            overlaps = index.search(batch.column("prompt"))
            best = overlaps.best()
            columns = (overlaps.rows, overlaps.items, overlaps.entries, overlaps.coverage)
            for row, number, entry, coverage in zip(
                *(c[best].tolist() for c in columns), strict=True
            ):
                item = index.items[number]
                ngram = index.ngram(entry)
                verdicts.best[before + row] = (item.benchmark, item.id, ngram, coverage)
            long = ~index.whole[overlaps.entries]
            verdicts.by_ngram.update((before + overlaps.rows[long]).tolist())
            before += len(batch)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=None, help="first N rows only")
    wanted = parser.parse_args().rows
    if not DATA.exists():
        raise SystemExit("needs ../shared/data")
    against = benchmarks()
    files = sorted(DATA.glob("*/*.jsonl.gz"))
    every = (text for file in files for row in rows_of(file) for text in texts_in(row))
    texts = [text for text in every if len(text.split(None, FEWEST_WORDS)) >= FEWEST_WORDS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_problems(path, texts[:wanted])
        rows = pq.read_metadata(path).num_rows
        seconds, verdicts = cpu_seconds(lambda: ours(path, against), REPEATS)
        peer, flags = cpu_seconds(lambda: core_loop(path, against))
    if verdicts.by_ngram != {i for i, f in enumerate(flags) if f}:
        raise SystemExit("flags differ from open-r1's")
    print(
        f"{rows:,} rows, {len(verdicts.by_ngram):,} flagged as by open-r1; short items flag "
        f"{len(verdicts.best) - len(verdicts.by_ngram):,} more; CPU s: {seconds:.3f}, {peer:.2f}"
    )
    result = {
        "bench": "decontaminate",
        "ours": rows / seconds,
        "peer": {"open-r1 core loop": rows / peer},
        "unit": "rows/s",
        "ratio": peer / seconds,
        "setup": f"{rows} texts x {sum(map(len, against.values()))} items of {len(against)} "
        "benchmarks, n=9, whitespace, identical flags, parquet in, verdicts out, index building "
        "included, CPU seconds, one core",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
