"""Who is killed in which stage and when, from a seed, and how that is carried out."""

import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
from home import FINAL, eventually
from place import ROLES, SERVERS, Attempt, Place, kill, reach
from processes import below, left

IN_PARTS = ("collect",)  # by worker processes
IN_A_CHILD = (
    "base", "sft", "rl_math", "rl_code",
    "evaluate_base", "evaluate_sft", "evaluate_rl_math", "evaluate_rl_code",
)  # fmt: skip
# Not rl_math, which has no programs to run, nor evaluate_base, whose model writes none.
JUDGED = ("judge", "judge_rl", "rl_code", *IN_A_CHILD[5:])
LOOK_S = 600.0  # for what a stage starts to be there, unless the stage is over


@dataclass(frozen=True)
class Strike:
    """One or several SIGKILLs in one stage at one moment."""

    stage: str
    victims: tuple[str, ...]
    share: float
    """Of the stage's usual seconds that are behind it at that moment."""
    form: bool = False
    """The run is one of the web form, executed by the worker."""

    @property
    def ends_a_run(self) -> bool:
        return bool(fatal(self.victims, self.form))


@dataclass
class Outcome:
    """What became of a strike."""

    strike: Strike
    killed: tuple[str, ...] = ()
    """The others were not there: the stage was over, or had none left."""
    broken: list[str] = field(default_factory=list)
    """Invariants that do not hold."""


def fatal(victims: Sequence[str], form: bool) -> set[str]:
    """Those of the victims without whom a run does not go on by itself."""
    return set(victims) & ({"flow", "child", "worker"} if form else {"flow", "child"})


def draw(chance: random.Random, stages: Sequence[str], forms: int) -> list[Strike]:
    """The strikes in the order of the stages: every stage meets every victim it has. So many
    `forms` are runs from the web form, whose engine or worker is killed."""

    def one(stage: str, victims: Sequence[str], form: bool = False) -> Strike:
        latest = 0.9 if stage in IN_A_CHILD else 0.5  # a slow machine may be quick by then
        drawn = tuple(chance.sample(victims, len(victims)))
        return Strike(stage, drawn, round(chance.uniform(0.0, latest), 3), form)

    strikes: list[Strike] = []
    from_the_form = set(chance.sample(list(stages), min(forms, len(stages))))
    for stage in stages:
        deaths = [one(stage, ("flow",))]
        if stage in IN_A_CHILD or stage in IN_PARTS:
            deaths.append(one(stage, ("child",)))
        if stage in from_the_form:
            deaths.append(one(stage, (chance.choice(["flow", "worker"]),), form=True))
        chance.shuffle(deaths)
        below_it = [one(stage, ("judge worker", "sandbox"))] if stage in JUDGED else []
        # last, for after those that the run survives the stage may be over
        strikes += [*deaths, *below_it, one(stage, SERVERS)]
    return strikes


def kills(strikes: Sequence[Strike]) -> int:
    return sum(len(s.victims) for s in strikes)


class Attacker:
    """Carries strikes out on one run, which is started again whenever a strike ended it."""

    def __init__(self, place: Place, seconds: Mapping[str, float], settings: Any) -> None:
        self.place, self.settings = place, settings
        self.seconds = dict(seconds)
        self.attempt: Attempt | None = None
        self.attempts = 0

    def carry_out(self, strike: Strike) -> Outcome:
        """Start or go on with the run, wait for the moment, SIGKILL, look around."""
        outcome, attempt = Outcome(strike), self._attempt(strike)
        if reach(attempt, strike.stage, strike.share * self.seconds.get(strike.stage, 0.0)):
            tree = [p for top in ROLES["flow"](attempt) for p in (top, *below(top.pid))]
            for victim in strike.victims:
                here = self._find(victim, attempt, strike.stage)
                if here is not None and kill(here):
                    outcome.killed += (victim,)
                    tree += [here, *below(here.pid)] if victim not in SERVERS else []
            if set(outcome.killed) & set(SERVERS):
                self.place.klear("up")  # ends what a dead worker left behind
            if fatal(outcome.killed, bool(attempt.flow_run)):
                self._after_a_death(attempt, tree, outcome)
        for stage, said in re.findall(r"^✓ (\w+) +([\d.]+) s", attempt.text(), re.MULTILINE):
            self.seconds[stage] = min(self.seconds.get(stage, 0.0), float(said))
        if attempt.process is not None and attempt.has_ended():
            self.attempt = None
        return outcome

    def finish(self, until: str) -> None:
        """Go on undisturbed to the end."""
        if self.attempt is not None and self.attempt.until != until:
            self.attempt.wait()
        if self.attempt is None or self.attempt.has_ended():
            self.attempt = self.place.attempt(until=until)
            self.attempts += 1
        attempt, self.attempt = self.attempt, None
        attempt.wait()
        failed = attempt.process is not None and attempt.process.wait() != 0
        assert not failed, f"the last attempt failed:\n{attempt.text()[-3000:]}"

    def abandon(self) -> None:
        """End what is under way, for a driver that gives up."""
        if self.attempt is not None and self.attempt.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.attempt.process.pid, 9)

    def _attempt(self, strike: Strike) -> Attempt:
        """The run that is under way, or a new attempt of the kind that the strike wants.

        It ends after the stage: else it would have passed the next ones while servers start again.
        """
        now = self.attempt
        if now is not None and now.until != strike.stage:
            now.wait()
        if now is not None and not now.has_ended():
            if now.flow_run or not strike.form:
                return now
            for process in ROLES["flow"](now):  # a run of the other kind is in the way
                kill(process)
            self._wait_for_the_end(now)
        self.attempts += 1
        if strike.form:
            self.attempt = self.place.attempt_by_form(self.settings, strike.stage)
        else:
            self.attempt = self.place.attempt(until=strike.stage)
        return self.attempt

    def _find(self, victim: str, attempt: Attempt, stage: str) -> psutil.Process | None:
        """Judges start their workers and sandboxes when there is work for them: some patience."""
        started_late = victim in ("child", "judge worker", "sandbox")
        deadline = time.monotonic() + (LOOK_S if started_late else 1.0)
        while not (found := ROLES[victim](attempt)):
            if time.monotonic() > deadline or attempt.is_over(stage) or attempt.has_ended():
                return None
            time.sleep(0.01)
        return found[0]

    def _after_a_death(
        self, attempt: Attempt, tree: list[psutil.Process], outcome: Outcome
    ) -> None:
        self._wait_for_the_end(attempt)
        if attempt.process and outcome.killed == ("child",) and attempt.process.wait() == 0:
            outcome.broken.append("a run whose stage was killed says that it succeeded")
        for process in left(tree):
            with suppress(psutil.Error):
                outcome.broken.append(f"left running: {process.pid} {process.cmdline()[:6]}")

    def _wait_for_the_end(self, attempt: Attempt) -> None:
        """Of the process; what Prefect believes of the run is looked at when all is over."""
        if attempt.process is not None:
            attempt.wait()
        else:
            assert eventually(lambda: not ROLES["flow"](attempt)), "the engine lives on"
            run = f"flow_runs/{attempt.flow_run}"
            assert eventually(lambda: self.place.call(run)["state_type"] in FINAL)
        self.attempt = None
