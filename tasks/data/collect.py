"""Collect: every declared source becomes Problems; a row that cannot is rejected with its place.

    deepscaler.jsonl row 17: field answer: missing

Nothing is dropped silently and a bad row never ends the stage. A missing or damaged file does, and
so does a source that gives no problem at all. A kill loses the file or the piece being read: of a
large .jsonl or parquet file a share.
"""

import json
from collections import Counter
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

from klear.configs.settings.sources import CollectSettings
from klear.eval.records import Problem, PublishedRate, Rejected, Trace
from klear.eval.tables import ArrowWriter, arrow_schema, read_table, row_groups
from klear.tasks.data.sources import (
    COUNTS,
    KEPT,
    PART_BYTES,
    PASS_RATES,
    REJECTED,
    TRACES,
    collect_part,
    collected_files,
    planned,
)
from klear.tasks.stage.parts import computed_parts
from klear.tasks.stage.stage import Metrics, stage
from klear.tasks.store.store import SCRATCH

SOURCES = "sources.json"


@stage(version=2, group="data", reads=collected_files)
def collect(out: Path, *, settings: CollectSettings, seed: int) -> Metrics:
    """Gather the problems of every source (§3.1, §3.2.1); bad rows are kept apart with a reason.

    `limit` of a source counts its problems. Answers that rows bring along are in `traces.parquet`,
    pass rates in `pass_rates.parquet`, where a stage takes them. `sources.json` says what was read:
    dataset, commit and licence of each source. Raises ValueError for a source that gives no
    problem.
    """
    scratch = out / SCRATCH
    parts = planned(settings, scratch)
    compute = partial(collect_part, settings=settings, seed=seed)
    last = {part.source: number for number, part in enumerate(parts)}
    commits = {part.source: piece.commit for part in parts for piece in part.pieces}
    counts: Counter[str] = Counter()
    place = scratch / f"parts-{PART_BYTES}"
    folders = computed_parts(place, parts, compute, settings.runtime.workers)
    traced = settings.traces and any(source.trace_fields for source in settings.sources)
    rated = settings.pass_rates and any(source.pass_rate_field for source in settings.sources)
    with (
        closing(folders),
        ArrowWriter(out / KEPT, arrow_schema(Problem)[0]) as kept,
        ArrowWriter(out / REJECTED, arrow_schema(Rejected)[0]) as rejected,
        ArrowWriter(out / TRACES, arrow_schema(Trace)[0]) if traced else nullcontext() as traces,
        ArrowWriter(out / PASS_RATES, arrow_schema(PublishedRate)[0])
        if rated
        else nullcontext() as rates,
    ):
        for number, (part, folder) in enumerate(zip(parts, folders, strict=True)):
            name = settings.sources[part.source].name
            for table in row_groups(folder / KEPT):
                kept.write(table)
                counts["not_judgeable"] += table.column("judgeable").to_pylist().count(False)
            for table in row_groups(folder / REJECTED):
                rejected.write(table)
            for published, name_of_it in ((traces, TRACES), (rates, PASS_RATES)):
                if published and (folder / name_of_it).exists():
                    for table in row_groups(folder / name_of_it):
                        published.write(table)
            for count, rows in json.loads((folder / COUNTS).read_text()).items():
                counts[f"{count}/{name}"] += rows
            if number == last[part.source] and not counts[f"kept/{name}"]:
                first = next(read_table(folder / REJECTED, Rejected), None)
                example = f"; {first.reason}; the row: {first.row[:300]}" if first else ""
                raise ValueError(
                    f"source {name!r} gives no problem: {counts[f'rejected/{name}']:,} rows are "
                    f"rejected and its `where` leaves out {counts[f'left_out/{name}']:,}{example}"
                )
    facts = [
        {
            "name": source.name,
            "dataset": (source.dataset or ", ".join(source.files) or f"generated: {source.family}")
            + (" (local files)" if source.dataset and source.files else ""),
            "revision": commits.get(number, ""),
            "licence": source.licence,
        }
        for number, source in enumerate(settings.sources)
    ]
    (out / SOURCES).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    in_order = sorted(counts.items(), key=lambda count: count[0].partition("/")[0])
    return {
        **{"kept": kept.rows, "rejected": rejected.rows},
        **{name: n for name, n in in_order if n or name.startswith("kept/")},
        "left_out": sum(n for name, n in in_order if name.startswith("left_out/")),
    }
