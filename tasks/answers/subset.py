"""Which candidates a subset of fixed size takes: diverse prompts first, pools balanced if asked.

K-Center-Greedy runs on the vectors of the distinct prompts; the answers then come round by round,
one for every picked prompt, until the subset is full. Vectors and picks are kept in the scratch
folder, so that a killed stage goes on where it was.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from configs.settings.data import SelectSettings
from tasks.store.store import SCRATCH

PromptOf = Callable[[str], str]


@dataclass
class Candidates:
    """Rows that passed every filter: for each pool (a domain, say), problem id → its rows."""

    rows: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, pool: str, problem_id: str, row: int) -> None:
        self.rows.setdefault(pool, {}).setdefault(problem_id, []).append(row)

    def size(self, pool: str) -> int:
        return sum(map(len, self.rows[pool].values()))


@dataclass(frozen=True)
class Subset:
    """`rows` to keep; `radius` is the largest distance from a prompt to a picked one, by pool."""

    rows: frozenset[int]
    radius: dict[str, float]


def choose(
    candidates: Candidates, prompt_of: PromptOf, settings: SelectSettings, seed: int, out: Path
) -> Subset:
    """All candidates, or `size` of them, or equal shares of the pools (the smallest decides)."""
    names = sorted(candidates.rows)
    everything: dict[str, list[int]] = {}
    for name in names:
        everything.update(candidates.rows[name])
    total = sum(map(len, everything.values()))
    size = settings.size or total
    if settings.balanced and names:
        share = min(size // len(names), *map(candidates.size, names))
        pools = {name: (candidates.rows[name], share) for name in names}
    else:
        pools = {"all": (everything, min(size, total))}
    rows: set[int] = set()
    radius: dict[str, float] = {}
    for number, (name, (pool, wanted)) in enumerate(pools.items()):
        order, radius[name] = list(pool), 0.0
        if 0 < wanted < len(order):
            scratch = out / SCRATCH / f"subset-{number}"
            prompts = [prompt_of(id_) for id_ in order]
            picks, radius[name] = diverse(prompts, wanted, settings, seed, scratch)
            order = [order[i] for i in picks]
        rows.update(_round_by_round([pool[id_] for id_ in order], wanted))
    return Subset(frozenset(rows), radius)


def diverse(
    prompts: list[str], wanted: int, settings: SelectSettings, seed: int, scratch: Path
) -> tuple[list[int], float]:
    """K-Center-Greedy's picks of `prompts` in their order, and the covering radius.

    The seed decides the first pick and the randomised SVD.
    """
    # Compiled code and scikit-learn: only a sized subset needs them.
    from tasks.answers.embeddings import embed
    from tasks.answers.k_center import k_center_greedy

    scratch.mkdir(parents=True, exist_ok=True)
    vectors = scratch / "vectors.npy"
    if not vectors.exists():
        partial = scratch / "partial.npy"
        np.save(partial, embed(prompts, settings.embedding, seed, scratch))
        os.replace(partial, vectors)
    first = int(np.random.default_rng(seed).integers(len(prompts)))
    centers = k_center_greedy(np.load(vectors), wanted, first, checkpoint=scratch / "picks.npz")
    return centers.picks, centers.radius


def _round_by_round(answers: list[list[int]], wanted: int) -> list[int]:
    """The first answer of every prompt, then the second of every prompt, up to `wanted` rows."""
    taken: list[int] = []
    for round_ in range(max(map(len, answers), default=0)):
        for rows in answers:
            if len(taken) == wanted:
                return taken
            if round_ < len(rows):
                taken.append(rows[round_])
    return taken
