"""Select: which answers become the SFT mixture (§3.1, §5.1; Tables 2, 4 and 5)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from configs.settings.data import SelectSettings
from eval.answers import after_think, has_closed_think
from eval.records import Domain, Example, Rejected, Sample, Score
from eval.tables import TableWriter, count_rows, read_table
from tasks.answers.difficulty import Difficulty, Label
from tasks.answers.subset import Candidates, choose
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
    judgeable: bool = True


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
    labels: dict[str, Label] = {
        row.problem_id: row.label for row in read_table(difficulty, Difficulty)
    }
    prompts: dict[str, Prompt] = {}
    with pq.ParquetFile(problems) as file:
        columns = ["id", "prompt", "domain", "source", "judgeable"]
        known = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=known):
            for row in batch.to_pylist():
                prompts[row["id"]] = Prompt(
                    text=row["prompt"],
                    domain=row["domain"],
                    source=row["source"],
                    label=labels.get(row["id"], "unrated"),
                    judgeable=row.get("judgeable", True),
                )
    return prompts


def judged_samples(samples: Path, scores: Path) -> Iterator[tuple[Sample, Score]]:
    """Samples with their scores; raises ValueError when the two tables do not belong together."""
    answered, judged = count_rows(samples), count_rows(scores)
    if answered != judged:
        raise ValueError(f"{answered} samples but {judged} scores: rerun the judge stage")
    for sample, score in zip(read_table(samples, Sample), read_table(scores, Score), strict=True):
        if (sample.problem_id, sample.index) != (score.problem_id, score.index):
            raise ValueError(
                f"score of {score.problem_id} {score.index} stands beside the sample "
                f"{sample.problem_id} {sample.index}: rerun the judge stage"
            )
        yield sample, score


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
    paths = samples.file("samples.parquet"), scores.file("scores.parquet")
    total = count_rows(paths[0])
    candidates, reasons = Candidates(), dict[int, str]()
    for row, (sample, score) in enumerate(judged_samples(*paths)):
        report(row, 2 * total, "filtering")
        prompt = _prompt_of(prompts, sample)
        reason = unfit(sample, settings) or unwanted(prompt, score.correct, settings)
        if reason is None:
            candidates.add(getattr(prompt, settings.balance_by), sample.problem_id, row)
        else:
            reasons[row] = reason
    subset = choose(candidates, lambda id_: prompts[id_].text, settings, seed, out)
    counts: Counter[str] = Counter()
    with (
        TableWriter(out / "kept.parquet", Example) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        for row, (sample, score) in enumerate(judged_samples(*paths)):
            report(total + row + 1, 2 * total, "writing")
            prompt = prompts[sample.problem_id]
            if row in subset.rows:
                counts[f"kept_{prompt.domain}"] += 1
                counts[f"kept/{prompt.source}"] += 1
                counts["kept_correct"] += bool(score.correct)
                kept.write(_example(sample, score, prompt))
                continue
            reason = reasons.get(row, NOT_CHOSEN)
            counts[f"rejected/{reason}"] += 1
            rejected.write(_rejected(sample, prompt, reason))
    return {
        "kept": float(kept.rows),
        "rejected": float(rejected.rows),
        **{name: float(counts[name]) for name in sorted(counts)},
        **{f"k_center_radius/{pool}": r for pool, r in subset.radius.items() if r > 0.0},
    }


def _prompt_of(prompts: dict[str, Prompt], sample: Sample) -> Prompt:
    try:
        return prompts[sample.problem_id]
    except KeyError:
        raise ValueError(
            f"a sample answers {sample.problem_id}, which is no problem here"
        ) from None


def _example(sample: Sample, score: Score, prompt: Prompt) -> Example:
    return Example(
        problem_id=sample.problem_id,
        index=sample.index,
        domain=prompt.domain,
        source=prompt.source,
        prompt=prompt.text,
        response=sample.text,
        correct=score.correct,
    )


def _rejected(sample: Sample, prompt: Prompt, reason: str) -> Rejected:
    return Rejected(
        id=f"{sample.problem_id}/{sample.index}",
        source=prompt.source,
        reason=reason,
        row=sample.model_dump_json(),
    )
