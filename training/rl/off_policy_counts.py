"""How far RL training leaves the policy that sampled: tokens outside the clip range, by update.

A trainer counts the answer tokens of every optimizer update in a table of sign of the advantage ×
side of the clip range × entropy, and the size of the policy gradient that they carry (what it is:
`training.rl.statistics`). Tokens without an advantage carry none and are not counted: shares are of
tokens with one, where the metrics `clip/high` and `clip/low` are shares of all answer tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from klear.training.layout import OFF_POLICY, StepLines, read_lines

ENTROPY_EDGES = (0.01, 0.1, 0.5, 1.0, 2.0)
"""Between the bins, in nats: most tokens of a trained model have next to none."""
SHAPE = (2, 3, len(ENTROPY_EDGES) + 1)
"""Sign of the advantage Ã (negative, positive); where the ratio δ lies (below, inside or above the
clip range [1 − ε_low, 1 + ε_high]); entropy, from low to high."""
CELLS = SHAPE[0] * SHAPE[1] * SHAPE[2]
HIGH_ENTROPY = ENTROPY_EDGES.index(0.5) + 1
"""From this bin on the policy decides something (§5.2.1): 0.5 nats."""


@dataclass(frozen=True)
class OffPolicy:
    """Counts of one or more updates; both arrays are float64 of `SHAPE`."""

    tokens: np.ndarray
    gradient: np.ndarray
    """Sum over tokens of the length of their policy gradient, in a unit common to one update."""

    @property
    def clipped(self) -> float:
        """Share of tokens that clipping cuts off: Ã > 0 above the range, Ã < 0 below it."""
        return _share(_clipped(self.tokens).sum(), self.tokens.sum())

    @property
    def clipped_gradient(self) -> float:
        """Share of the policy gradient that those tokens carry."""
        return _share(_clipped(self.gradient).sum(), self.gradient.sum())

    def by_entropy(self) -> list[tuple[str, list[float]]]:
        """(bin, shares) from low to high entropy, and of all bins: its tokens; of those with Ã > 0
        and of those with Ã < 0 what lies outside the clip range; what is clipped; its gradient;
        what of this is on clipped tokens."""
        edges = [f"{e:g}" for e in ENTROPY_EDGES]
        inner = [f"{low} to {high}" for low, high in pairwise(edges)]
        bins = {name: slice(i, i + 1) for i, name in enumerate([f"below {edges[0]}", *inner])}
        bins |= {f"{edges[-1]} and more": slice(SHAPE[2] - 1, None), "all": slice(None)}
        return [(name, self._shares(entropy)) for name, entropy in bins.items()]

    def _shares(self, entropy: slice) -> list[float]:
        tokens, gradient = self.tokens[:, :, entropy], self.gradient[:, :, entropy]
        return [
            _share(tokens.sum(), self.tokens.sum()),
            *(outside(tokens[sign]) for sign in (1, 0)),
            _share(_clipped(tokens).sum(), tokens.sum()),
            _share(gradient.sum(), self.gradient.sum()),
            _share(_clipped(gradient).sum(), gradient.sum()),
        ]


def outside(tokens: np.ndarray) -> float:
    """Share of tokens [side, entropy] whose ratio lies outside the clip range."""
    return _share(tokens.sum() - tokens[1].sum(), tokens.sum())


def summed(counts: Sequence[OffPolicy]) -> OffPolicy:
    """All of them as one; zeros where there is none."""
    tables = ([c.tokens for c in counts], [c.gradient for c in counts])
    return OffPolicy(*(sum(table, start=np.zeros(SHAPE)) for table in tables))


def headline(tables: Sequence[OffPolicy]) -> dict[str, float]:
    """The figures of one rollout step, as its metrics name them; none where no token counted."""
    whole = summed(tables)
    if not whole.tokens.any():
        return {}
    high = whole.tokens[:, :, HIGH_ENTROPY:]
    return {
        "off_policy/outside_negative": outside(whole.tokens[0]),
        "off_policy/outside_positive": outside(whole.tokens[1]),
        "off_policy/clipped_high_entropy": _share(_clipped(high).sum(), high.sum()),
        "off_policy/clipped_gradient": whole.clipped_gradient,
    }


def write_off_policy(lines: StepLines, step: int, tables: Sequence[OffPolicy]) -> None:
    """A line for every update of a rollout step, from 1; one without a counted token has none."""
    for update, table in enumerate(tables):
        if table.tokens.any():
            gradient = [float(f"{g:.6g}") for g in table.gradient.flatten()]
            tokens = table.tokens.flatten().tolist()
            lines.write({"step": step, "update": update, "tokens": tokens, "gradient": gradient})


def read_off_policy(folder: Path) -> list[OffPolicy]:
    """Every update of an RL stage, in order; nothing for a stage that counted none."""
    rows = read_lines(folder / OFF_POLICY)
    names = ("tokens", "gradient")
    return [OffPolicy(*(np.reshape(row[n], SHAPE).astype(float) for n in names)) for row in rows]


def _clipped(table: np.ndarray) -> np.ndarray:
    """[entropy]: what clipping cuts off."""
    return table[0, 0] + table[1, 2]


def _share(part: float, whole: float) -> float:
    """part / whole; 0 where the whole is nothing."""
    return float(part / whole) if whole else 0.0
