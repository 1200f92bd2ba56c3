"""Collect: every declared source becomes Problems; a row that cannot is rejected with its place.

    deepscaler.jsonl row 17: field answer: missing

Nothing is dropped silently and a bad row never ends the stage. A missing or damaged file does, and
so does a source that gives no problem at all. A kill loses the file or the piece being read.
"""

import json
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

from configs.sources import CollectSettings, Source
from eval.records import Problem, Rejected
from eval.tables import ArrowWriter, arrow_schema, read_table, row_groups
from tasks.collect_part import COUNTS, collect_part
from tasks.collect_plan import KEPT, REJECTED, lookup_texts, planned, source_facts
from tasks.parts import computed_parts
from tasks.sources import collected_files
from tasks.stage import Metrics, stage
from tasks.store import SCRATCH

SOURCES = "sources.json"


@stage(version=2, reads=collected_files)
def collect(out: Path, *, settings: CollectSettings, seed: int) -> Metrics:
    """Gather the problems of every source (§3.1, §3.2.1); bad rows are kept apart with a reason.

    `limit` of a source counts its problems. `sources.json` says what was read: dataset, commit and
    licence of each source. Raises ValueError for a source that gives no problem.
    """
    scratch = out / SCRATCH
    parts, lookups = planned(settings, scratch)
    compute = partial(
        collect_part,
        settings=settings,
        seed=seed,
        texts=lookup_texts(settings, lookups, scratch / "texts"),
    )
    workers = settings.runtime.workers
    counts: Counter[str] = Counter()
    with (
        closing(computed_parts(scratch / "parts", parts, compute, workers)) as folders,
        ArrowWriter(out / KEPT, arrow_schema(Problem)[0]) as kept,
        ArrowWriter(out / REJECTED, arrow_schema(Rejected)[0]) as rejected,
    ):
        for part, folder in zip(parts, folders, strict=True):
            source = settings.sources[part.source]
            for table in row_groups(folder / KEPT):
                kept.write(table)
                judgeable = table.column("judgeable").to_pylist()
                counts["not_judgeable"] += judgeable.count(False)
            for table in row_groups(folder / REJECTED):
                rejected.write(table)
            for name, number in json.loads((folder / COUNTS).read_text()).items():
                counts[f"{name}/{source.name}"] += number
            if part.last and not counts[f"kept/{source.name}"]:
                raise _no_problem(source, counts, folder)
    facts = [fact.model_dump() for fact in source_facts(settings, parts)]
    (out / SOURCES).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    in_order = sorted(counts.items(), key=lambda count: count[0].partition("/")[0])
    by_source = {n: float(v) for n, v in in_order if v or n.startswith("kept/")}
    left_out = sum(n for name, n in counts.items() if name.startswith("left_out/"))
    totals = {"kept": float(kept.rows), "rejected": float(rejected.rows)}
    return {**totals, **by_source, "left_out": float(left_out)}


def _no_problem(source: Source, counts: Counter[str], folder: Path) -> ValueError:
    """Why a source is empty, with what to look at."""
    rejected, left_out = counts[f"rejected/{source.name}"], counts[f"left_out/{source.name}"]
    said = f"source {source.name!r} gives no problem: "
    if not rejected and not left_out:
        return ValueError(f"{said}it has no rows")
    if not rejected:
        return ValueError(f"{said}its `where` leaves out all of its {left_out:,} rows")
    first = next(read_table(folder / REJECTED, Rejected), None)
    example = f"; {first.reason}{_fields_of(first.row)}" if first else ""
    return ValueError(f"{said}{rejected:,} rows are rejected and {left_out:,} left out{example}")


def _fields_of(row: str) -> str:
    try:
        return f" (the row has: {', '.join(list(json.loads(row))[:20])})"
    except (ValueError, TypeError):
        return ""
