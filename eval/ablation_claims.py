"""The claims of the paper's analysis, one row each: its figures, ours, and a verdict on the whole.

A claim holds as far as its contrasts do, so its verdict is theirs where they agree and a count of
them where they do not. Contrasts outside the claim do not count, and what the scores do not test
stands beside the verdict. Experiments of one claim (math and code sources) make one row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from configs.ablation import Ablation, Contrast
from eval.ablation_outcome import Finding, Outcome
from eval.ablation_page import TONES, verdict_cell
from eval.page import Cell, Table
from eval.paper_table import titles

NOT_RUN = "not run yet"


class Compared(NamedTuple):
    """One arm against another, and what was found on the benchmark that decides."""

    spec: Ablation
    contrast: Contrast
    other: str
    found: Finding | None


def compared(spec: Ablation, outcome: Outcome | None, profile: str) -> list[Compared]:
    """Every contrast of an experiment, in order."""
    benchmark = spec.scale(profile).benchmarks[0]
    by = {(f.better, f.than, f.measure): f for f in (outcome.findings if outcome else ())
          if f.benchmark == benchmark}  # fmt: skip
    return [
        Compared(spec, contrast, other, by.get((contrast.better, other, contrast.measure)))
        for contrast in spec.contrasts
        for other in contrast.than
    ]


def claim_table(rows: Sequence[Compared]) -> Table:
    """One row a claim, in the order in which they first come."""
    rows = [row for row in rows if row.contrast.part_of_claim]
    claims = dict.fromkeys(row.spec.claim for row in rows)
    lines: list[tuple[str | Cell, ...]] = []
    for claim in claims:
        mine = [row for row in rows if row.spec.claim == claim]
        lines.append((
            " and ".join(dict.fromkeys(row.spec.shows for row in mine)),
            claim,
            _lines(mine, lambda row: papers(row.spec, row.contrast, row.other)),
            _lines(mine, lambda row: _ours(row.found)),
            verdict_cell(verdict_of(row.found for row in mine)),
            "; ".join(dict.fromkeys(row.spec.untested for row in mine if row.spec.untested)),
        ))  # fmt: skip
    columns = ("", "claim", "paper, points", "ours, points, with interval", "verdict",
               "not tested")  # fmt: skip
    return Table(columns, tuple(lines), prose=frozenset({1, 2, 3, 4, 5}))


def verdict_of(found: Iterable[Finding | None]) -> str:
    """`confirmed`, if all contrasts are; `1 reversed, 1 not seen`, if they differ."""
    counts = Counter(f.verdict if f else NOT_RUN for f in found) or Counter([NOT_RUN])
    if len(counts) == 1:
        return next(iter(counts))
    order = (*TONES, NOT_RUN)
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])


def papers(spec: Ablation, contrast: Contrast, other: str) -> str:
    """`AIME 2024 +1.2, AIME 2025 +2.4`, where the paper prints figures."""
    better = contrast.better
    known = [
        f"{titles().get(benchmark, benchmark)} {row[better] - row[other]:+.1f}"
        for benchmark, row in spec.paper.items()
        if better in row and other in row and contrast.measure == "score"
    ]
    return ", ".join(known) or "curves only"


def _ours(found: Finding | None) -> str:
    return f"{found.points:+.1f} ({found.low:+.1f} to {found.high:+.1f})" if found else "–"


def _lines(rows: Sequence[Compared], said: Callable[[Compared], str]) -> str:
    """What is said of each contrast, named where it differs between them.

    With its experiment, where there are several: arms of two tables have the same names.
    """
    texts = [said(row) for row in rows]
    if len(set(texts)) == 1:
        return texts[0]
    several = len({row.spec.shows for row in rows}) > 1
    return "; ".join(
        f"{row.spec.shows + ': ' if several else ''}{row.contrast.against(row.other)} {text}"
        for row, text in zip(rows, texts, strict=True)
    )
