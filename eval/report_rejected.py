"""The report's rejected rows: how many for which reason, and one of each to look at."""

import json
from dataclasses import dataclass

from eval.page import Block, Fold, Heading, Paragraph, Table
from eval.run_facts import Filtered, RunFacts, reason_kind
from eval.run_readings import rows_at
from eval.tables import column

REASONS = 6
LONGEST = 280
TEXTS = ("prompt", "problem", "question", "text")


@dataclass(frozen=True)
class Example:
    """One rejected row in the words of its stage."""

    kind: str
    rows: int
    reason: str
    text: str


def rejected_section(facts: RunFacts) -> list[Block]:
    """One fold a stage that rejected something."""
    folds = [_fold(f, _examples(facts, f)) for f in facts.filters() if f.rejected]
    if not folds:
        return []
    return [
        Heading("Rejected, and why"),
        Paragraph("One row of each frequent reason; all of them are in rejected.parquet."),
        *folds,
    ]


def _fold(f: Filtered, examples: list[Example]) -> Fold:
    left_out = len(f.reasons) - len(examples)
    table = Table(
        ("Reason", "Rows", "For example"),
        tuple((e.reason, f"{e.rows:,}", e.text) for e in examples),
        caption=f"{left_out} rarer reasons are left out." if left_out > 0 else "",
        prose=frozenset({0, 2}),
    )
    of = f.kept + f.rejected
    share = "" if f.answers else f" of {of:,} rows ({100 * f.rejected / of:.1f} %)"
    return Fold(f"{f.stage}: {f.rejected:,} rejected{share}", (table,))


def _examples(facts: RunFacts, f: Filtered) -> list[Example]:
    path = facts.path(f.stage, "rejected.parquet")
    if path is None:
        return []
    counts = dict(f.reasons[:REASONS])
    first: dict[str, int] = {}
    for number, reason in enumerate(column(path, "reason")):
        kind = reason_kind(str(reason))
        if kind in counts and kind not in first:
            first[kind] = number
            if len(first) == len(counts):
                break
    rows = rows_at(path, list(first.values()))
    return [
        Example(kind, counts[kind], str(row["reason"]), _text(str(row.get("row", ""))))
        for kind, row in sorted(
            zip(first, rows, strict=True), key=lambda pair: (-counts[pair[0]], pair[0])
        )
    ]


def _text(row: str) -> str:
    """What the row is about: its prompt, or the row as it is."""
    try:
        fields = json.loads(row)
    except ValueError:
        fields = {}
    found = (fields.get(n) for n in TEXTS) if isinstance(fields, dict) else ()
    text = " ".join(str(next((t for t in found if t), row)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
