"""How far RL training leaves the policy that sampled: tokens outside the clip range, by update, in
a table of sign of the advantage × side of the clip range × entropy, and the size of their policy
gradient (see `training.rl.statistics`). Shares are of tokens with an advantage, where the metrics
`clip/high` and `clip/low` are shares of all answer tokens."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..launch.result_files import OFF_POLICY, StepLines, read_lines

ENTROPY_EDGES = (0.01, 0.1, 0.5, 1.0, 2.0)
"""Between the bins, in nats: most tokens of a trained model have next to none."""
COUNTED = ("tokens", "gradient")
SHAPE = (len(COUNTED), 2, 3, len(ENTROPY_EDGES) + 1)
"""What is counted: tokens, and the sum of the lengths of their gradients, in a unit of the update;
sign of Ã (−, +); the ratio δ (below, inside, above [1 − ε_low, 1 + ε_high]); entropy."""
CELLS = SHAPE[1] * SHAPE[2] * SHAPE[3]
HIGH_ENTROPY = ENTROPY_EDGES.index(0.5) + 1
"""From this bin on the policy decides something (§5.2.1): 0.5 nats."""
Table = np.ndarray  # Counts of one or more updates: float64 of `SHAPE`.


def clipped(table: Table) -> tuple[float, float]:
    """Shares of tokens and of gradient that clipping cuts off: Ã > 0 above the range, < 0 below."""
    cut = table[:, 0, 0] + table[:, 1, 2]
    tokens, gradient = map(_share, cut.sum(1), table.sum((1, 2, 3)))
    return tokens, gradient


def outside(tokens: np.ndarray) -> float:
    """Share of tokens [side, entropy] whose ratio lies outside the clip range."""
    return _share(tokens.sum() - tokens[1].sum(), tokens.sum())


def by_entropy(table: Table) -> list[tuple[str, list[float]]]:
    """(bin, shares) by entropy, and of all: its tokens; of Ã > 0 and of Ã < 0 what lies outside the
    clip range; what is clipped; its gradient; what of this is on clipped tokens."""
    edges = [f"{e:g}" for e in ENTROPY_EDGES]
    inner = [f"{low} to {high}" for low, high in pairwise(edges)]
    names = [f"below {edges[0]}", *inner, f"{edges[-1]} and more"]

    def shares(part: Table) -> list[float]:
        tokens, gradient = map(_share, part.sum((1, 2, 3)), table.sum((1, 2, 3)))
        cut, cut_gradient = clipped(part)
        return [tokens, outside(part[0, 1]), outside(part[0, 0]), cut, gradient, cut_gradient]

    bins = [(name, shares(table[..., i : i + 1])) for i, name in enumerate(names)]
    return [*bins, ("all", shares(table))]


def summed(tables: Sequence[Table]) -> Table:
    return sum(tables, start=np.zeros(SHAPE))


def headline(tables: Sequence[Table]) -> dict[str, float]:
    """The figures of one rollout step, as its metrics name them; none where no token counted."""
    total = summed(tables)
    if not total.any():
        return {}
    return {
        "off_policy/outside_negative": outside(total[0, 0]),
        "off_policy/outside_positive": outside(total[0, 1]),
        "off_policy/clipped_high_entropy": clipped(total[..., HIGH_ENTROPY:])[0],
        "off_policy/clipped_gradient": clipped(total)[1],
    }


def write_off_policy(lines: StepLines, step: int, tables: Sequence[Table]) -> None:
    """A line for every update of a rollout step, from 1; one without a counted token has none."""
    for update, table in enumerate(tables):
        if table.any():
            gradient = [float(f"{g:.6g}") for g in table[1].flatten()]
            tokens = table[0].flatten().tolist()
            lines.write({"step": step, "update": update, "tokens": tokens, "gradient": gradient})


def read_off_policy(folder: Path) -> list[Table]:
    """Every update of an RL stage, in order; nothing for a stage that counted none."""
    rows = read_lines(folder / OFF_POLICY)
    return [np.reshape([row[name] for name in COUNTED], SHAPE).astype(float) for row in rows]


def _share(part: float, total: float) -> float:
    return float(part / total) if total else 0.0
