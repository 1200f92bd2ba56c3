"""Filter RL: keep the problems that a strong teacher mostly solves (§3.2.1).

The text asks for pass@16 > 0.5 (code) and a majority of 16 valid answers (math). The unbiased
pass@16 of 16 samples is 0 or 1, so the share of the 16 that pass is what it must mean.
"""

from collections import Counter
from pathlib import Path

from ...configs.settings.data import FilterRLSettings
from ...eval.records import NO_GOLD, Problem
from ...eval.records.tables import read_table
from ...eval.rows.golds import chance_of_guessing, tail, unjudgeable
from ...training.launch.result_files import KEPT
from ..data.split_rows import split_rows
from ..engine.stage import Metrics, stage
from ..store.store import Artifact
from .difficulty import Tally, published_among, tallies_of


def rejection(problem: Problem, counted: Tally, settings: FilterRLSettings) -> tuple[str, str]:
    """(kind, reason) of a rejection, or two empty strings for a problem to keep. Unscored answers
    leave the share; below `min_scored` of the answers scored, nothing is known."""
    if not problem.judgeable:
        return "not_judgeable", NO_GOLD
    if counted.samples == 0:
        published = settings.pass_rates == "published"
        return "unsampled", "no published pass rate" if published else "no samples"
    rate, code = counted.pass_rate, problem.domain == "code"
    if rate is None or counted.scored < settings.min_scored * counted.samples:
        return "too_few_scored", f"only {counted.scored} of {counted.samples} samples were scored"
    if not counted.passed and (why := unjudgeable(problem)):
        return "unjudgeable", f"unjudgeable: {why}"
    threshold = settings.code_threshold if code else settings.math_threshold
    inclusive = code and settings.code_inclusive
    share = f"{counted.passed:g} of {counted.scored} samples pass"
    if counted.published:
        share = f"published pass rate {counted.pass_rate:g}"
    if rate > threshold or (inclusive and rate == threshold):
        chance = chance_of_guessing(problem)
        luck = tail(round(counted.passed), counted.scored, chance) if chance else 0.0
        if luck <= settings.guessing:
            return "", ""
        guessed = f"guessing at {chance:.2g} each does so in {luck:.1%} of cases"
        return "guessable", f"{share}; {guessed}, more than guessing={settings.guessing:g}"
    needed = f"needs {'at least' if inclusive else 'more than'} {threshold:g}"
    return "too_few_passed", f"{share}; {needed}"


@stage(version=2, group="data")
def filter_rl(
    out: Path, problems: Artifact, scores: Artifact, *, settings: FilterRLSettings
) -> Metrics:
    """Keep a problem when the share of its scored samples that pass exceeds the threshold.

    Counted apart: golds that nobody can match (`unjudgeable`) and golds that guessing matches, of
    which more is asked (`guessing`).
    `scores`: of our samples, or the collected rows that bring pass rates.
    """
    source, tallies = problems.file(KEPT), tallies_of(scores)
    counts, reasons = Counter({"kept_math": 0, "kept_code": 0}), dict[int, str]()
    for row, problem in enumerate(read_table(source, Problem)):
        kind, reason = rejection(problem, tallies.get(problem.id, Tally()), settings)
        if kind:
            reasons[row] = reason
        counts[f"rejected_{kind}" if kind else f"kept_{problem.domain}"] += 1
        counts["guessable"] += chance_of_guessing(problem) > 0
    split = split_rows(source, reasons.items(), out)
    kept = {"kept": split["kept"], "rejected": split["rejected"]}
    return {**kept, **dict(sorted(counts.items())), **published_among(tallies)}
