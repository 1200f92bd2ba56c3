"""Which candidates a subset of fixed size takes: diverse prompts first, domains balanced if asked.

K-Center-Greedy runs on the distinct prompts (TF-IDF of words, reduced by SVD); the answers then
come round by round, one for every picked prompt, until the subset is full.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from configs.data_stages import SelectSettings
from tasks.k_center import k_center_greedy
from tasks.ngrams import alnum_words

DIMENSIONS = 256

PromptOf = Callable[[str], str]


@dataclass
class Candidates:
    """Rows that passed every filter: for each domain, problem id → its row numbers."""

    rows: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, domain: str, problem_id: str, row: int) -> None:
        self.rows.setdefault(domain, {}).setdefault(problem_id, []).append(row)

    def size(self, domain: str) -> int:
        return sum(map(len, self.rows[domain].values()))


@dataclass(frozen=True)
class Subset:
    """`rows` to keep; `radius` is the largest distance from a prompt to a picked one, by pool."""

    rows: frozenset[int]
    radius: dict[str, float]


def choose(
    candidates: Candidates, prompt_of: PromptOf, settings: SelectSettings, seed: int
) -> Subset:
    """All candidates, or `size` of them, or equal shares of the domains (the smallest decides)."""
    domains = sorted(candidates.rows)
    everything: dict[str, list[int]] = {}
    for domain in domains:
        everything.update(candidates.rows[domain])
    total = sum(map(len, everything.values()))
    size = settings.size or total
    if settings.balanced and domains:
        share = min(size // len(domains), *map(candidates.size, domains))
        pools = {domain: (candidates.rows[domain], share) for domain in domains}
    else:
        pools = {"all": (everything, min(size, total))}
    rows: set[int] = set()
    radius: dict[str, float] = {}
    for name, (pool, wanted) in pools.items():
        order, radius[name] = _prompts_to_use(list(pool), wanted, prompt_of, seed)
        rows.update(_round_by_round([pool[id_] for id_ in order], wanted))
    return Subset(frozenset(rows), radius)


def embed(prompts: list[str], seed: int) -> np.ndarray:
    """Unit vectors [N, ≤ 256] of prompts: TF-IDF of their words, reduced by truncated SVD."""
    # Slow to import, and only sized subsets need it.
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    vectoriser = TfidfVectorizer(analyzer=_terms, sublinear_tf=True)  # pyright: ignore
    weights = vectoriser.fit_transform(prompts)
    dimensions = min(DIMENSIONS, min(weights.shape) - 1)
    if dimensions < 1:
        return weights.toarray()
    reduced = TruncatedSVD(dimensions, random_state=seed).fit_transform(weights)
    return np.asarray(normalize(reduced))


def _terms(text: str) -> list[str]:
    return alnum_words(text) or [text]


def _prompts_to_use(
    ids: list[str], wanted: int, prompt_of: PromptOf, seed: int
) -> tuple[list[str], float]:
    """Problem ids in the order in which their answers are taken, and the covering radius."""
    if not 0 < wanted < len(ids):
        return ids, 0.0
    points = embed([prompt_of(id_) for id_ in ids], seed)
    first = int(np.random.default_rng(seed).integers(len(ids)))
    centers = k_center_greedy(points, wanted, first)
    return [ids[i] for i in centers.picks], centers.radius


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
