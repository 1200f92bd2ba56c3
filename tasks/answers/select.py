"""Select: which answers become the SFT mixture (§3.1, §5.1; Tables 2, 4 and 5).

A subset of fixed size takes diverse prompts first: K-Center-Greedy (Tables 4-5; Sener & Savarese,
arXiv 1708.00489) runs on the vectors of the distinct prompts; the answers then come round by round,
one for every picked prompt, until the subset is full.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...configs.settings.data import SelectSettings
from ...eval.answers import after_think, has_closed_think
from ...eval.progress import report
from ...eval.records import Domain, Example, Rejected, Sample, Score
from ...eval.records.tables import TableWriter, count_rows, read_table, row_groups
from ...training.launch.result_files import KEPT, REJECTED, SAMPLES, SCORES
from ..data.tokenize import alnum_words
from ..engine.stage import Metrics, stage
from ..store.store import Artifact
from .difficulty import Difficulty, Label

NOT_CHOSEN = "not in the subset"
CUT_OFF = {"length": "truncated", "error": "engine error", "refused": "refused", "empty": "empty"}
Candidates = Mapping[str, Mapping[str, Sequence[int]]]
"""Rows that passed every filter: for each pool (a domain, say), problem id → its rows."""
GRID = 2.0**-20


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the selection needs of a Problem: not its tests, which may be large."""

    text: str
    domain: Domain
    source: str
    label: Label
    judgeable: bool


def unfit(sample: Sample, settings: SelectSettings) -> str | None:
    """Why a sample cannot be trained on whatever it says, or None.

    The paper keeps all responses (§5.1.1). One that is cut off, refused, empty or without a
    closed think block would teach exactly that, so it is not counted as a response.
    """
    if sample.finish_reason != "stop":
        return CUT_OFF[sample.finish_reason]
    if not sample.text.strip():
        return "empty"
    if settings.require_think and not has_closed_think(sample.text):
        return "no single closed think block"
    if not (after_think(sample.text) or "").strip():
        return "no answer after the think block"
    return None


def unwanted(prompt: Prompt, correct: bool | None, settings: SelectSettings) -> str | None:
    """Why the mixture leaves a trainable sample out, or None."""
    ranked = settings.math_sources if prompt.domain == "math" else settings.code_sources
    if ranked and prompt.source not in ranked[: settings.top_k_sources]:
        return "source not in the mixture"
    by_gold = settings.difficulty != "all" or settings.correctness == "only_true"
    if by_gold and not prompt.judgeable:
        return "not judgeable"
    if settings.difficulty != "all" and prompt.label != settings.difficulty:
        return f"{prompt.label} problem"
    if settings.correctness == "only_true" and not correct:
        return "unscored" if correct is None else "wrong"
    return None


def read_prompts(problems: Path, difficulty: Path) -> dict[str, Prompt]:
    """problem id → Prompt."""
    rated = read_table(difficulty, Difficulty)
    labels: dict[str, Label] = {row.problem_id: row.label for row in rated}
    prompts: dict[str, Prompt] = {}
    for table in row_groups(problems, ["id", "prompt", "domain", "source", "judgeable"]):
        for row in table.to_pylist():
            id_, text = row.pop("id"), row.pop("prompt")
            prompts[id_] = Prompt(text=text, label=labels.get(id_, "unrated"), **row)
    return prompts


def judged_samples(
    samples: Path, scores: Path, prompts: dict[str, Prompt]
) -> Iterator[tuple[Sample, Score, Prompt]]:
    """Samples with their scores and prompts; raises ValueError where these do not match."""
    for sample, score in zip(read_table(samples, Sample), read_table(scores, Score), strict=True):
        if (sample.problem_id, sample.index) != (score.problem_id, score.index):
            raise ValueError(
                f"score of {score.problem_id} {score.index} stands beside the sample "
                f"{sample.problem_id} {sample.index}: rerun the judge stage"
            )
        yield sample, score, prompts[sample.problem_id]


def choose(
    candidates: Candidates, prompt_of: Callable[[str], str], settings: SelectSettings, seed: int
) -> set[int]:
    """The rows to keep: all, or `size`, or equal shares of the pools (the smallest decides). The
    seed decides the first pick and the randomised SVD."""
    sizes = {name: sum(map(len, candidates[name].values())) for name in sorted(candidates)}
    size = settings.size or sum(sizes.values())
    if settings.balanced and sizes:
        share = min(size // len(sizes), *sizes.values())
        pools = [(candidates[name], share) for name in sizes]
    else:
        everything = {i: rows for name in sizes for i, rows in candidates[name].items()}
        pools = [(everything, size)]
    kept: set[int] = set()
    for pool, wanted in pools:
        order = list(pool)
        if 0 < wanted < len(order):
            prompts = [prompt_of(id_) for id_ in order]
            points = embed(prompts, settings.dimensions, seed)
            first = int(np.random.default_rng(seed).integers(len(order)))
            order = [order[i] for i in k_center_greedy(points, wanted, first)]
        rounds = sorted(  # the first answer of every prompt, then the second of every prompt
            (turn, rank, row)
            for rank, id_ in enumerate(order)
            for turn, row in enumerate(pool[id_])
        )
        kept.update(row for _, _, row in rounds[:wanted])
    return kept


def embed(prompts: list[str], dimensions: int, seed: int) -> np.ndarray:
    """Unit vectors [N, ≤ dimensions] float32: TF-IDF of words and numbers, by truncated SVD.

    Coordinates are rounded to multiples of 2⁻²⁰. What linear algebra libraries and their threads
    change in the last bits is gone then, and prompts of the same words are the same point.
    """
    # Slow to import, and only sized subsets need it.
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    def terms(text: str) -> list[str]:
        return alnum_words(text) or [text]

    vectoriser = TfidfVectorizer(analyzer=terms, sublinear_tf=True)  # pyright: ignore
    weights = vectoriser.fit_transform(prompts)
    dimensions = min(dimensions, min(weights.shape) - 1)
    if dimensions < 1:
        vectors = weights.toarray()
    else:
        with np.errstate(invalid="ignore"):  # equal prompts have no variance to be explained
            reduced = TruncatedSVD(dimensions, random_state=seed).fit_transform(weights)
        vectors = np.asarray(normalize(reduced))
    return np.asarray(np.round(vectors / GRID) * GRID, np.float32)


def k_center_greedy(points: np.ndarray, k: int, first: int = 0) -> list[int]:
    """Pick `k` of `points` [n, d], `first` and then always the point farthest from all picks.

    Distances are Euclidean; of equally far points the lowest index wins. On the grid of `embed`
    every product and sum below is exact in float64, so the picks are the same on every machine and
    with any number of threads.
    """
    points = np.asarray(points, np.float64)
    squares = np.einsum("nd,nd->n", points, points)
    nearest = np.full(len(points), np.inf)  # squared distance to the nearest pick; -1: a pick
    picks = [first]
    while len(picks) < k:
        last = picks[-1]
        np.minimum(nearest, squares + squares[last] - 2 * (points @ points[last]), out=nearest)
        nearest[last] = -1.0
        picks.append(int(nearest.argmax()))
        report(len(picks), k, "picks")
    return picks


@stage(version=2, group="data")
def select(
    out: Path,
    problems: Artifact,
    samples: Artifact,
    scores: Artifact,
    difficulty: Artifact,
    *,
    settings: SelectSettings,
    seed: int,
) -> Metrics:
    """One Example for every answer in the mixture, in sample order; the others with a reason.

    Two passes over the samples, none of which is held: the first finds the candidates, then the
    subset is chosen by their prompts, and the second writes.
    """
    prompts = read_prompts(problems.file(KEPT), difficulty.file("difficulty.parquet"))
    tables = samples.file(SAMPLES), scores.file(SCORES), prompts
    total = count_rows(tables[0])
    candidates: dict[str, dict[str, list[int]]] = {}
    reasons: dict[int, str] = {}
    domains = set[str]()
    for row, (sample, score, prompt) in enumerate(judged_samples(*tables)):
        report(row, 2 * total, "filtering")
        domains.add(prompt.domain)
        reason = unfit(sample, settings) or unwanted(prompt, score.correct, settings)
        if reason is None:
            pool = candidates.setdefault(prompt.domain, {})
            pool.setdefault(sample.problem_id, []).append(row)
        else:
            reasons[row] = reason
    if settings.balanced and (empty := domains - candidates.keys()):
        why = Counter(reasons.values()).most_common(3)
        few = f"no answer of {min(empty)} is fit to train on; the commonest reasons: {why}"
        raise ValueError(f"select.balanced: {few}: mend that, or set select.balanced=false")
    chosen = choose(candidates, lambda id_: prompts[id_].text, settings, seed)
    counts: Counter[str] = Counter()
    with (
        TableWriter(out / KEPT, Example) as kept,
        TableWriter(out / REJECTED, Rejected) as rejected,
    ):
        for row, (sample, score, prompt) in enumerate(judged_samples(*tables)):
            report(total + row + 1, 2 * total, "writing")
            if row in chosen:
                counts[f"kept_{prompt.domain}"] += 1
                counts[f"kept/{prompt.source}"] += 1
                counts["kept_correct"] += bool(score.correct)
                example = Example(
                    problem_id=sample.problem_id,
                    index=sample.index,
                    domain=prompt.domain,
                    source=prompt.source,
                    prompt=prompt.text,
                    response=sample.text,
                    correct=score.correct,
                )
                kept.write(example)
                continue
            reason = reasons.get(row, NOT_CHOSEN)
            counts[f"rejected/{reason}"] += 1
            name, original = f"{sample.problem_id}/{sample.index}", sample.model_dump_json()
            rejected.write(Rejected(id=name, source=prompt.source, reason=reason, row=original))
    return {"kept": kept.rows, "rejected": rejected.rows, **dict(sorted(counts.items()))}
