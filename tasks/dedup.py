"""Dedup: every query once (§3.1, §3.2.1); near-duplicates too, where settings ask for it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import pyarrow.parquet as pq

from configs.data_stages import DedupSettings
from eval.records import Problem, Record, Rejected, normalise_prompt
from eval.tables import TableWriter, count_rows, read_table, write_table
from tasks.near_duplicates import NearPair, near_duplicates
from tasks.progress import report
from tasks.stage import Metrics, stage
from tasks.store import Artifact


class NearDuplicates(Record):
    """Two prompts whose verified Jaccard similarity joined them into one group."""

    id: str
    duplicate_id: str
    jaccard: float


def exact_duplicates(prompts: Iterable[str]) -> dict[int, int]:
    """Row → first row with the same normalised prompt (NFKC, lower case, single spaces).

    Memory is one 128-bit digest a distinct prompt, whatever the length of the prompts.
    """
    first: dict[bytes, int] = {}
    same: dict[int, int] = {}
    for row, prompt in enumerate(prompts):
        text = normalise_prompt(prompt).encode("utf-8", "surrogatepass")
        earlier = first.setdefault(blake2b(text, digest_size=16).digest(), row)
        if earlier != row:
            same[row] = earlier
    return same


def repeated_ids(ids: list[str], dropped: dict[int, int]) -> dict[int, int]:
    """Row → first row with the same id but another prompt: later stages join by id."""
    first: dict[str, int] = {}
    repeated: dict[int, int] = {}
    for row, id_ in enumerate(ids):
        if row not in dropped and first.setdefault(id_, row) != row:
            repeated[row] = first[id_]
    return repeated


def _column(path: Path, name: str) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[name]):
            yield from batch.column(0).to_pylist()


def _reasons(
    path: Path, settings: DedupSettings
) -> tuple[dict[int, tuple[str, str]], list[NearDuplicates]]:
    """Row → (kind, reason) of every row to reject, and the pairs behind the near-duplicates."""
    ids = list(_column(path, "id"))
    same = exact_duplicates(_column(path, "prompt"))
    clashes = repeated_ids(ids, same)
    reasons = {row: ("exact", f"same query as {ids[first]}") for row, first in same.items()}
    for row in clashes:
        reasons[row] = ("id", f"id {ids[row]} already names another query")
    if not settings.near:
        return reasons, []
    left = [row for row in range(len(ids)) if row not in reasons]
    prompts = (prompt for row, prompt in enumerate(_column(path, "prompt")) if row not in reasons)
    pairs, firsts = near_duplicates(
        prompts,
        jaccard=settings.jaccard,
        shingle=settings.shingle,
        permutations=settings.permutations,
    )
    for number, first in enumerate(firsts):
        if first != number:
            reasons[left[number]] = ("near", f"near-duplicate of {ids[left[first]]}")
    return reasons, [_near_record(pair, ids, left) for pair in pairs]


def _near_record(pair: NearPair, ids: list[str], left: list[int]) -> NearDuplicates:
    return NearDuplicates(
        id=ids[left[pair.first]], duplicate_id=ids[left[pair.second]], jaccard=pair.jaccard
    )


@stage(version=1)
def dedup(out: Path, problems: Artifact, *, settings: DedupSettings) -> Metrics:
    """Keep the first problem of every query, in order; rejected rows name the one kept.

    With `near`, groups joined by word-shingle Jaccard ≥ `jaccard` keep their first problem as
    well (`near_pairs.parquet` holds the verified pairs). A prompt shorter than a shingle is near
    only to a prompt of the same words.
    """
    source = problems.file("kept.parquet")
    total = count_rows(source)
    reasons, pairs = _reasons(source, settings)
    counts: Counter[str] = Counter()
    with (
        TableWriter(out / "kept.parquet", Problem) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        for row, problem in enumerate(read_table(source, Problem)):
            report(row + 1, total)
            if row not in reasons:
                counts[f"kept/{problem.source}"] += 1
                kept.write(problem)
                continue
            kind, reason = reasons[row]
            counts[f"rejected/{problem.source}"] += 1
            counts[f"rejected_{kind}"] += 1
            original = problem.model_dump_json()
            rejected.write(
                Rejected(id=problem.id, source=problem.source, reason=reason, row=original)
            )
    if settings.near:
        write_table(out / "near_pairs.parquet", NearDuplicates, pairs)
    return {
        "kept": float(kept.rows),
        "rejected": float(rejected.rows),
        **{name: float(counts[name]) for name in sorted(counts)},
    }
