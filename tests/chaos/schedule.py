"""Who is killed in which stage and when, from a seed: every stage meets every victim it has."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from roles import SERVERS

IN_PARTS = ("collect",)  # by worker processes
IN_A_CHILD = (
    "base", "sft", "rl_math", "rl_code",
    "evaluate_base", "evaluate_sft", "evaluate_rl_math", "evaluate_rl_code",
)  # fmt: skip
# Not rl_math, which has no programs to run, nor evaluate_base, whose model writes none.
JUDGED = ("judge", "judge_rl", "rl_code", *IN_A_CHILD[5:])
WITH_PROGRESS = ("sft", "rl_math", "rl_code", *IN_A_CHILD[4:])


@dataclass(frozen=True)
class Strike:
    """One or several SIGKILLs in one stage at one moment."""

    stage: str
    victims: tuple[str, ...]
    share: float
    """Of the stage that is behind it at that moment."""
    by_progress: bool = False
    """The share is of what the stage says of its progress, else of its usual seconds."""
    form: bool = False
    """The run is one of the web form, executed by the worker."""

    @property
    def ends_a_run(self) -> bool:
        return bool(fatal(self.victims, self.form))


def fatal(victims: Sequence[str], form: bool) -> set[str]:
    """Those of the victims without whom a run does not go on by itself."""
    return set(victims) & ({"flow", "child", "worker"} if form else {"flow", "child"})


def draw(chance: random.Random, stages: Sequence[str], forms: int) -> list[Strike]:
    """The strikes in the order of the stages.

    Args:
        chance: what is random comes from here.
        stages: of a run, in their order.
        forms: so many runs are started from the web form, whose engine or worker is killed.
    """
    strikes: list[Strike] = []
    from_the_form = set(chance.sample(list(stages), min(forms, len(stages))))
    for stage in stages:
        deaths = [_one(chance, stage, ("flow",))]
        if stage in IN_A_CHILD or stage in IN_PARTS:
            deaths.append(_one(chance, stage, ("child",)))
        if stage in from_the_form:
            victim = chance.choice(["flow", "worker"])
            deaths.append(_one(chance, stage, (victim,), form=True))
        below = ("judge worker", "sandbox") if stage in JUDGED else ()
        survived = [
            _one(chance, stage, tuple(chance.sample(v, len(v)))) for v in (below, SERVERS) if v
        ]
        chance.shuffle(deaths)
        strikes += [*deaths, *survived]  # after those that the run survives the stage may be over
    return strikes


def _one(chance: random.Random, stage: str, victims: tuple[str, ...], form: bool = False) -> Strike:
    by_progress = stage in WITH_PROGRESS and not form and chance.random() < 0.5
    latest = 0.9 if stage in IN_A_CHILD else 0.5  # a machine that was slow may be quick by then
    return Strike(stage, victims, round(chance.uniform(0.0, latest), 3), by_progress, form)


def kills(strikes: Sequence[Strike]) -> int:
    return sum(len(s.victims) for s in strikes)
