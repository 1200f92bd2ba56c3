"""How far RL training leaves the policy that sampled: tokens outside the clip range, by update.

A trainer counts the answer tokens of every optimizer update in a table of sign of the advantage ×
side of the clip range × entropy, and the size of the policy gradient that they carry (what it is:
`training.rl.statistics`). Tokens without an advantage carry none and are not counted: shares are of
tokens with one, where the metrics `clip/high` and `clip/low` are shares of all answer tokens.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from training.layout import OFF_POLICY, StepLines

SIGNS = ("negative", "positive")
"""Of the advantage Ã."""
SIDES = ("below", "inside", "above")
"""Of the clip range [1 − ε_low, 1 + ε_high]: where the ratio δ lies."""
ENTROPY_EDGES = (0.01, 0.1, 0.5, 1.0, 2.0)
"""Between the bins, in nats: most tokens of a trained model have next to none."""
SHAPE = (len(SIGNS), len(SIDES), len(ENTROPY_EDGES) + 1)
CELLS = SHAPE[0] * SHAPE[1] * SHAPE[2]
HIGH_ENTROPY = 0.5
"""Nats. A token at which the policy decides something (§5.2.1), for the figures that need one."""
_HIGH = ENTROPY_EDGES.index(HIGH_ENTROPY) + 1
_INSIDE = SIDES.index("inside")


@dataclass(frozen=True)
class OffPolicy:
    """Counts of one or more updates; both arrays are float64 of `SHAPE`."""

    tokens: np.ndarray
    gradient: np.ndarray
    """Sum over tokens of the length of their policy gradient, in a unit common to one update."""

    def on(self, sign: str, side: str) -> float:
        """Share of the tokens with this sign of Ã that lie on this side."""
        mine = self.tokens[SIGNS.index(sign)]
        return _share(mine[SIDES.index(side)].sum(), mine.sum())

    def outside(self, sign: str) -> float:
        """Share of the tokens with this sign of Ã whose ratio lies outside the clip range."""
        mine = self.tokens[SIGNS.index(sign)]
        return _share(mine.sum() - mine[_INSIDE].sum(), mine.sum())

    @property
    def clipped(self) -> float:
        """Share of tokens that clipping cuts off: Ã > 0 above the range, Ã < 0 below it."""
        return _share(_clipped(self.tokens).sum(), self.tokens.sum())

    @property
    def clipped_gradient(self) -> float:
        """Share of the policy gradient that those tokens carry."""
        return _share(_clipped(self.gradient).sum(), self.gradient.sum())

    @property
    def clipped_at_high_entropy(self) -> float:
        """Share of the tokens of `HIGH_ENTROPY` or more that clipping cuts off."""
        return _share(_clipped(self.tokens)[_HIGH:].sum(), self.tokens[:, :, _HIGH:].sum())

    def by_entropy(self) -> list[tuple[Any, ...]]:
        """(bin, share of tokens, of these clipped, share of the gradient, of this on clipped
        tokens), from low to high entropy."""
        columns = []
        for table in (self.tokens, self.gradient):
            of_bin = table.sum((0, 1))
            columns += [_share(of_bin, of_bin.sum()), _share(_clipped(table), of_bin)]
        return list(zip(bins(), *columns, strict=True))

    def outside_by_entropy(self) -> list[tuple[Any, ...]]:
        """(bin, tokens with Ã > 0 as a share of all tokens, share of these outside the clip range,
        the same two for Ã < 0), from low to high entropy."""
        columns = []
        for sign in ("positive", "negative"):
            mine = self.tokens[SIGNS.index(sign)]
            of_bin = mine.sum(0)
            columns += [_share(of_bin, self.tokens.sum()), _share(of_bin - mine[_INSIDE], of_bin)]
        return list(zip(bins(), *columns, strict=True))


@dataclass(frozen=True)
class Counted:
    """One optimizer update: `update` 0 is the first of its rollout."""

    step: int
    update: int
    counts: OffPolicy


def bins() -> list[str]:
    """The entropy bins in words, from low to high."""
    edges = [f"{e:g}" for e in ENTROPY_EDGES]
    inner = [f"{low} to {high}" for low, high in pairwise(edges)]
    return [f"below {edges[0]}", *inner, f"{edges[-1]} and more"]


def summed(counts: Sequence[OffPolicy]) -> OffPolicy:
    """All of them as one; zeros where there is none."""
    tables = ([c.tokens for c in counts], [c.gradient for c in counts])
    return OffPolicy(*(sum(table, start=np.zeros(SHAPE)) for table in tables))


def headline(tables: Sequence[OffPolicy]) -> dict[str, float]:
    """The figures of one rollout step, as its metrics name them; none where no token counted."""
    whole = summed(tables)
    if not whole.tokens.any():
        return {}
    return {
        "off_policy/outside_negative": whole.outside("negative"),
        "off_policy/outside_positive": whole.outside("positive"),
        "off_policy/clipped_high_entropy": whole.clipped_at_high_entropy,
        "off_policy/clipped_gradient": whole.clipped_gradient,
    }


class OffPolicyJournal(StepLines):
    """`logs/off_policy.jsonl`: a line of counts for every update of a rollout step."""

    def __init__(self, out: Path, *, after_step: int = 0) -> None:
        super().__init__(out / OFF_POLICY, after_step=after_step)

    def add(self, step: int, tables: list[OffPolicy]) -> None:
        """One rollout step, from 1; an update without a counted token is left out."""
        for update, table in enumerate(tables):
            if table.tokens.any():
                gradient = [float(f"{g:.6g}") for g in table.gradient.flatten()]
                tokens = table.tokens.flatten().tolist()
                self.write({"step": step, "update": update, "tokens": tokens, "gradient": gradient})


def read_off_policy(folder: Path) -> list[Counted]:
    """Every update of an RL stage, in order; nothing for a stage that counted none."""
    path = folder / OFF_POLICY
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for row in map(json.loads, lines):
        tokens, gradient = (np.reshape(row[n], SHAPE).astype(float) for n in ("tokens", "gradient"))
        found.append(Counted(row["step"], row["update"], OffPolicy(tokens, gradient)))
    return found


def _clipped(table: np.ndarray) -> np.ndarray:
    """[entropy]: what clipping cuts off."""
    return table[0, 0] + table[1, 2]


def _share(part: Any, whole: Any) -> Any:
    """part / whole, element by element; 0 where the whole is nothing."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) != 0)[()]
