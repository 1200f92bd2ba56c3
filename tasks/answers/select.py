"""Select: which answers become the SFT mixture (§3.1, §5.1; Tables 2, 4 and 5)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from configs.settings.data import SelectSettings
from eval.answers import after_think, has_closed_think
from eval.records import Domain, Example, Rejected, Sample, Score
from eval.tables import TableWriter, count_rows, read_table, row_groups
from tasks.answers.difficulty import Difficulty, Label
from tasks.answers.subset import choose
from tasks.stage.progress import report
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact

NOT_CHOSEN = "not in the subset"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the selection needs of a Problem: not its tests, which may be large."""

    text: str
    domain: Domain
    source: str
    label: Label
    judgeable: bool = True  # tables written before prompts could lack gold have no such column


def unfit(sample: Sample, settings: SelectSettings) -> str | None:
    """Why a sample cannot be trained on whatever it says, or None.

    The paper keeps all responses (§5.1.1). One that is cut off, refused, empty or without a
    closed think block would teach exactly that, so it is not counted as a response.
    """
    if sample.finish_reason != "stop":
        return {"length": "truncated", "error": "engine error"}.get(
            sample.finish_reason, sample.finish_reason
        )
    if not sample.text.strip():
        return "empty"
    if settings.require_think and not has_closed_think(sample.text):
        return "no single closed think block"
    if not (after_think(sample.text) or "").strip():
        return "no answer after the think block"
    if settings.max_chars is not None and len(sample.text) > settings.max_chars:
        return "longer than max_chars"
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
    answered, judged = count_rows(samples), count_rows(scores)
    if answered != judged:
        raise ValueError(f"{answered} samples but {judged} scores: rerun the judge stage")
    for sample, score in zip(read_table(samples, Sample), read_table(scores, Score), strict=True):
        if (sample.problem_id, sample.index) != (score.problem_id, score.index):
            raise ValueError(
                f"score of {score.problem_id} {score.index} stands beside the sample "
                f"{sample.problem_id} {sample.index}: rerun the judge stage"
            )
        if sample.problem_id not in prompts:
            raise ValueError(f"a sample answers {sample.problem_id}, which is no problem here")
        yield sample, score, prompts[sample.problem_id]


@stage(version=2)
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
    prompts = read_prompts(problems.file("kept.parquet"), difficulty.file("difficulty.parquet"))
    tables = samples.file("samples.parquet"), scores.file("scores.parquet"), prompts
    total = count_rows(tables[0])
    candidates: dict[str, dict[str, list[int]]] = {}
    reasons: dict[int, str] = {}
    for row, (sample, score, prompt) in enumerate(judged_samples(*tables)):
        report(row, 2 * total, "filtering")
        reason = unfit(sample, settings) or unwanted(prompt, score.correct, settings)
        if reason is None:
            pool = candidates.setdefault(getattr(prompt, settings.balance_by), {})
            pool.setdefault(sample.problem_id, []).append(row)
        else:
            reasons[row] = reason
    chosen, radius = choose(candidates, lambda id_: prompts[id_].text, settings, seed)
    counts: Counter[str] = Counter()
    with (
        TableWriter(out / "kept.parquet", Example) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
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
    return {
        "kept": float(kept.rows),
        "rejected": float(rejected.rows),
        **{name: float(counts[name]) for name in sorted(counts)},
        **{f"k_center_radius/{pool}": r for pool, r in radius.items() if r > 0.0},
    }
