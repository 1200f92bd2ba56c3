"""Collect: every declared source becomes Problems; a row that cannot is rejected with its place.

    deepscaler.jsonl row 17: field answer: missing

Nothing is dropped silently and a bad row never ends the stage. A missing or damaged file does, and
so does a source that gives no problem at all. A kill loses the file or the piece being read: of a
large .jsonl or parquet file a share.
"""

import json
from collections import Counter
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from ...configs.settings.sources import CollectSettings
from ...eval.records import Rejected
from ...eval.records.tables import ArrowWriter, arrow_schema, column, read_table, row_groups
from ..engine.parts import computed_parts
from ..engine.stage import Metrics, stage
from ..store.store import SCRATCH
from .sources import (
    COUNTS,
    GOLDS,
    KEPT,
    PART_BYTES,
    REJECTED,
    WAYS,
    collect_part,
    collected_files,
    planned,
    tables_of,
)

SOURCES = "sources.json"


@stage(version=6, group="data", reads=collected_files)  # ids of prompts
def collect(out: Path, *, settings: CollectSettings, seed: int) -> Metrics:
    """Gather the problems of every source (§3.1, §3.2.1); bad rows are kept apart with a reason.

    `limit` of a source counts its problems. Answers that rows bring along are in `traces.parquet`,
    pass rates in `pass_rates.parquet`, where a stage takes them. `sources.json` says what was read:
    dataset, commit and licence of each source, and how rows were read whose fields nobody named.
    Raises ValueError for a source that gives no problem.
    """
    scratch = out / SCRATCH
    parts = planned(settings, scratch)
    compute = partial(collect_part, settings=settings, seed=seed)
    last = {part.source: number for number, part in enumerate(parts)}
    commits = {part.source: piece.commit for part in parts for piece in part.pieces}
    counts: Counter[str] = Counter()
    ways = [Counter[str]() for _ in settings.sources]
    place = scratch / f"parts-{PART_BYTES}"
    folders = computed_parts(place, parts, compute, settings.runtime.workers)
    wanted = tables_of(map(settings.to_read, range(len(settings.sources))))
    with closing(folders), ExitStack() as stack:
        tables = {
            name: stack.enter_context(ArrowWriter(out / name, arrow_schema(record)[0]))
            for name, record in wanted.items()
        }
        for number, (part, folder) in enumerate(zip(parts, folders, strict=True)):
            name = settings.sources[part.source].name
            for file, table in tables.items():
                for group in row_groups(folder / file) if (folder / file).exists() else ():
                    table.write(group)
            for count, rows in json.loads((folder / COUNTS).read_text()).items():
                counts[f"{count}/{name}"] += rows
            if (folder / WAYS).exists():  # not in parts that an older klear left
                ways[part.source].update(json.loads((folder / WAYS).read_text()))
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
            **({"read": ways[number]} if ways[number] else {}),
        }
        for number, source in enumerate(settings.sources)
    ]
    (out / SOURCES).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    counts["not_judgeable"] = sum(not judgeable for judgeable in column(out / KEPT, "judgeable"))
    in_order = sorted(counts.items(), key=lambda count: count[0].partition("/")[0])
    return {
        **{"kept": tables[KEPT].rows, "rejected": tables[REJECTED].rows},
        **{name: n for name, n in in_order if n or name.startswith("kept/")},
        **{
            total: sum(n for name, n in in_order if name.startswith(f"{total}/"))
            for total in ("left_out", *GOLDS)
        },
    }
