"""The budget gate: what a stage will cost, from a pilot, before it is spent.

The pilot asks one sample of a few prompts, spread over all; its answers are used. The stage goes
on when the estimate is below what needs approval, or below what a person approved; it also stops
when it has really cost that much.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.settings.data import SampleSettings
from eval.records import Sample
from tasks.answers.asking import Plan, SpentApproved
from tasks.tracking.prefect_states import ApprovalRequired
from training.engines.figures import cost_of
from training.engines.journal import Journal, journal_path


@dataclass(frozen=True)
class Estimate:
    """What all answers will cost, with a 95 % interval from the spread of the pilot."""

    answers: int
    pilot: int
    tokens: float
    """Mean tokens an answer, without the prompt."""
    cost: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.answers:,} answers would cost about {self.cost:,.2f} ({self.low:,.2f} to "
            f"{self.high:,.2f}; a pilot of {self.pilot} had {self.tokens:,.0f} tokens an answer)"
        )


class NeedsApproval(ApprovalRequired):
    """The stage costs more than may be spent without asking. Every answer so far is kept."""

    def __init__(self, what: str, allowed: float, wanted: float) -> None:
        self.wanted = math.ceil(wanted)
        """A whole amount that lets the stage go on."""
        super().__init__(
            f"{what}, and {allowed:,.2f} may be spent without approval. To approve it: the same "
            f"command with --approve-cost {self.wanted}, or engine.runtime.approved_cost="
            f"{self.wanted} in the settings of the stage; answers so far are kept"
        )


def within_budget(
    out: Path,
    plan: Plan,
    settings: SampleSettings,
    ask: Callable[[Plan, float | None], float],
    ask_everything: Callable[[float | None], float],
) -> float:
    """`ask_everything(limit)`, after a pilot if the settings ask for one; returns what it does.

    `ask(plan, limit)` answers some requests. Raises NeedsApproval, before or while money is
    spent, and ValueError without prices.
    """
    runtime = settings.engine.runtime
    if runtime.approve_above is None:
        return ask_everything(None)
    if cost_of(runtime, 1, 1) is None:
        raise ValueError(
            "engine.runtime.approve_above needs prices: set engine.runtime.input_price and "
            "output_price (per million tokens)"
        )
    with suppress(SpentApproved):
        return ask_everything(0.0)  # a kill came after the last answer: nothing is left to buy
    allowed = max(runtime.approve_above, runtime.approved_cost)
    pilot = pilot_of(plan, runtime.pilot_prompts)
    ask(pilot, None)
    estimate = estimate_of(out, pilot, len(plan), settings)
    if estimate.cost > allowed:
        raise NeedsApproval(str(estimate), allowed, estimate.high)
    try:
        return ask_everything(allowed)
    except SpentApproved as spent:
        raise NeedsApproval(str(spent), allowed, max(estimate.high, 1.25 * spent.cost)) from None


def pilot_of(plan: Plan, prompts: int) -> Plan:
    """The first sample of `prompts` problems, spread evenly."""
    count = min(prompts, len(plan.problems))
    chosen = [plan.problems[i * len(plan.problems) // count] for i in range(count)]
    return Plan(chosen, plan.indices[:1], plan.seed)


def estimate_of(out: Path, pilot: Plan, answers: int, settings: SampleSettings) -> Estimate:
    """The cost of `answers` answers like those of the pilot."""

    def cost(sample: Sample) -> float:
        tokens = sample.prompt_tokens, sample.completion_tokens
        return cost_of(settings.engine.runtime, *tokens) or 0.0

    with Journal(journal_path(out)) as journal:
        found = list(_without_text(journal.samples(pilot.sample_keys())))
    costs = [cost(s) for s in found]
    n = max(1, len(costs))
    mean = sum(costs) / n
    variance = sum((c - mean) ** 2 for c in costs) / max(1, n - 1)
    spread = 1.96 * math.sqrt(variance / n)
    return Estimate(
        answers=answers,
        pilot=len(found),
        tokens=sum(s.completion_tokens for s in found) / n,
        cost=answers * mean,
        low=answers * max(0.0, mean - spread),
        high=answers * (mean + spread),
    )


def _without_text(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        yield sample.model_copy(update={"text": ""})
