"""open-r1's scripts/decontaminate.py, reimplemented after its description, for the benches.

Per benchmark: a dictionary from n-gram (words of the lower-cased text, split at white space) to
items, then one pass over all rows that builds the set of the row's n-grams and tests every one of
them (`any` over a finished set: no early exit). The script makes each pass by `datasets.map`, which
is slower; the clean-up afterwards is left out. The n-gram size is ours (9; the script's is 8).
"""

from collections import defaultdict
from pathlib import Path

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
