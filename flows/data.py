"""Problems in, training sets out (§3.1, §3.2.1): the left half of the README's figure."""

from dataclasses import dataclass

from configs.settings import Pipeline
from flows.approval import with_approval
from tasks.collect import collect
from tasks.decontaminate import decontaminate
from tasks.dedup import dedup
from tasks.difficulty import difficulty
from tasks.distill import distill
from tasks.filter_rl import filter_rl
from tasks.filter_tests import filter_tests
from tasks.judge import judge
from tasks.select import select
from tasks.store import Artifact

benchmarks = collect.named("benchmarks")
rate, judge_rate = distill.named("rate"), judge.named("judge_rate")
sample, judge_rl = distill.named("sample"), judge.named("judge_rl")
agreement, judge_agreement = distill.named("agreement"), judge.named("judge_agreement")


@dataclass(frozen=True)
class Data:
    """What training and evaluation need; `steps` are all stages, for the report."""

    examples: Artifact | None
    """None: training starts from a model that has seen SFT."""
    rl_problems: Artifact
    benchmarks: Artifact
    steps: tuple[Artifact, ...]


def build_data(s: Pipeline) -> Data:
    """collect → dedup → decontaminate → {distill … select, filter … pass@16}."""
    collected = collect(settings=s.collect)
    held_out = benchmarks(settings=s.benchmarks)
    unique = dedup(collected, settings=s.dedup)
    clean = decontaminate(unique, held_out, settings=s.decontaminate)
    for_sft = () if s.base.stands_for != "base" else sft_data(clean, s)

    tested = filter_tests(clean, settings=s.filter_tests)
    curated = with_approval(sample, tested, settings=s.sample)
    curated_scores = judge_rl(tested, curated, settings=s.judge_rl)
    rl_problems = filter_rl(tested, curated_scores, settings=s.filter_rl)

    return Data(
        examples=for_sft[-1] if for_sft else None,
        rl_problems=rl_problems,
        benchmarks=held_out,
        steps=(
            *(collected, held_out, unique, clean),
            *for_sft,
            *(tested, curated, curated_scores, rl_problems),
        ),
    )


def sft_data(clean: Artifact, s: Pipeline) -> tuple[Artifact, ...]:
    """distill → judge → rate → select: the branch that ends in SFT; the last is its examples."""
    answers = with_approval(distill, clean, settings=s.distill)
    scores = judge(clean, answers, settings=s.judge)
    rated, rated_scores = answers, scores
    rating: tuple[Artifact, ...] = ()
    if s.difficulty.rater == "model":
        rated = with_approval(rate, clean, settings=s.rate or s.distill)
        rated_scores = judge_rate(clean, rated, settings=s.judge)
        rating = (rated, rated_scores)
    strata = difficulty(clean, rated, rated_scores, settings=s.difficulty)
    examples = select(clean, answers, scores, strata, settings=s.mixture)
    return answers, scores, *rating, strata, examples


def check_the_judge(held_out: Artifact, s: Pipeline) -> tuple[Artifact, ...]:
    """Judge recorded answers whose grades are published; the report lists every disagreement."""
    if s.agreement is None:
        return ()
    recorded = agreement(held_out, settings=s.agreement)
    return recorded, judge_agreement(held_out, recorded, settings=s.judge)
