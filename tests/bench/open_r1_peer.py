"""open-r1's scripts/decontaminate.py, reimplemented after its description, for the benches.

Per benchmark: a dictionary from n-gram (words of the lower-cased text, split at white space) to
items, then one pass over all rows that builds the set of the row's n-grams and tests every one of
them (`any` over a finished set: no early exit). As shipped each pass is one `datasets.map`, in
several processes; here in this one, so that CPU seconds count all of it. The optional clean-up
afterwards is left out. The n-gram size is ours (9; the script's default is 8).
"""

from collections import defaultdict
from pathlib import Path

import datasets
import pyarrow.parquet as pq

N = 9
Benchmarks = dict[str, list[str]]


def grams(text: str) -> list[str]:
    normal = " ".join(text.lower().strip().split())
    words = normal.split()
    return [" ".join(words[i : i + N]) for i in range(len(words) - N + 1)]


def lookups(benchmarks: Benchmarks) -> dict[str, dict[str, set[int]]]:
    figures = {}
    for name, items in benchmarks.items():
        lookup: dict[str, set[int]] = defaultdict(set)
        for number, item in enumerate(items):
            for gram in grams(item):
                lookup[gram].add(number)
        figures[name] = lookup
    return figures


def core_loop(path: Path, benchmarks: Benchmarks) -> list[bool]:
    """The script's loops over a plain list of texts, without `datasets`."""
    rows = pq.read_table(path, columns=["prompt"], use_threads=False).column(0).to_pylist()
    flags = [False] * len(rows)
    for lookup in lookups(benchmarks).values():
        for i, row in enumerate(rows):
            if any({gram in lookup for gram in set(grams(row))}):  # noqa: C419 (as the peer)
                flags[i] = True
    return flags


def as_shipped(path: Path, benchmarks: Benchmarks, cache: Path) -> list[bool]:
    """The script itself: one map a benchmark, each of which adds a column of flags."""
    rows = datasets.Dataset.from_parquet(str(path), cache_dir=str(cache))
    assert isinstance(rows, datasets.Dataset)
    for name, lookup in lookups(benchmarks).items():

        def mark(row: dict, name: str = name, lookup: dict = lookup) -> dict:
            shared = set(grams(row["prompt"]))
            row[f"contaminated_{name}"] = any({gram in lookup for gram in shared})  # noqa: C419
            return row

        rows = rows.map(mark, new_fingerprint=f"map-{name}")
    columns = rows.select_columns([f"contaminated_{name}" for name in benchmarks])
    return [any(row) for row in zip(*columns[:].values(), strict=True)]
