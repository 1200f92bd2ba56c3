"""Carrying a strike out: start or go on with the run, wait for the moment, SIGKILL, look around."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
from home import FINAL, eventually
from miniature import Attempt, Place
from moments import has_ended, is_over, kept, reach, seconds_of
from processes import below, left
from roles import ROLES, SERVERS, kill
from schedule import Strike, fatal

LOOK_S = 600.0  # for what a stage starts to be there, unless the stage is over


@dataclass
class Outcome:
    """What became of a strike."""

    strike: Strike
    killed: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    """Victims that were not there: the stage was over, or had none left."""
    resumed: str = ""
    """What the next attempt found, for those that end a run."""
    lost_s: float | None = None
    """Seconds of work since the last that was kept."""
    broken: list[str] = field(default_factory=list)
    """Invariants that do not hold."""


class Attacker:
    """Carries strikes out on one run, which is started again whenever a strike ended it."""

    def __init__(self, place: Place, seconds: Mapping[str, float], settings: Any) -> None:
        self.place, self.settings = place, settings
        self.seconds = dict(seconds)
        self.attempt: Attempt | None = None
        self.attempts = 0

    def carry_out(self, strike: Strike) -> Outcome:
        outcome = Outcome(strike)
        attempt = self._attempt(strike)
        usual = self.seconds.get(strike.stage, 0.0)
        met = reach(self.place, attempt, strike.stage, strike.share, usual, strike.by_progress)
        for stage, usual in self.seconds.items():
            self.seconds[stage] = min(usual, seconds_of(attempt, stage, usual))
        if met.how != "running":
            outcome.missed = strike.victims
            self._let_go_if_over(attempt)
            return outcome
        tree = [p for top in ROLES["flow"](self.place, attempt) for p in (top, *below(top.pid))]
        outcome.resumed, saved = kept(self.place, strike.stage)
        for victim in strike.victims:
            here = self._find(victim, attempt, strike.stage)
            if here is not None and kill(here):
                outcome.killed += (victim,)
                tree += [here, *below(here.pid)] if victim not in SERVERS else []
            else:
                outcome.missed += (victim,)
        if fatal(outcome.killed, bool(attempt.flow_run)):
            outcome.lost_s = time.time() - max(met.since, saved or 0.0)
            self._after_a_death(attempt, tree, outcome)
        elif set(outcome.killed) & set(SERVERS):
            self.place.klear("up")
        self._let_go_if_over(attempt)
        return outcome

    def finish(self, until: str) -> str:
        """Go on undisturbed to the end; what the last attempt said."""
        if self.attempt is not None and self.attempt.until != until:
            last = self.attempt
            assert eventually(lambda: has_ended(self.place, last)), last.text()[-2000:]
        if self.attempt is None or has_ended(self.place, self.attempt):
            self.attempt = self.place.attempt(until=until)
            self.attempts += 1
        attempt, self.attempt = self.attempt, None
        assert eventually(lambda: has_ended(self.place, attempt)), attempt.text()[-2000:]
        failed = attempt.process is not None and attempt.process.wait() != 0
        assert not failed, f"the last attempt failed:\n{attempt.text()[-3000:]}"
        return attempt.text()

    def _attempt(self, strike: Strike) -> Attempt:
        """The run that is under way, or a new attempt of the kind that the strike wants.

        It ends after the stage: else it would have passed the next ones while servers start again.
        """
        now = self.attempt
        if now is not None and now.until != strike.stage:
            assert eventually(lambda: has_ended(self.place, now)), now.text()[-2000:]
        if now is not None and not has_ended(self.place, now):
            if now.flow_run or not strike.form:
                return now
            self._end(now)
        self.attempts += 1
        if strike.form:
            self.attempt = self.place.attempt_by_form(self.settings, strike.stage)
        else:
            self.attempt = self.place.attempt(until=strike.stage)
        return self.attempt

    def _end(self, attempt: Attempt) -> None:
        """A run of the other kind is in the way: it ends as by any other kill."""
        for process in ROLES["flow"](self.place, attempt):
            kill(process)
        self._wait_for_the_end(attempt)

    def _find(self, victim: str, attempt: Attempt, stage: str) -> psutil.Process | None:
        """Judges start their workers and sandboxes when there is work for them: some patience."""
        started_late = victim in ("child", "judge worker", "sandbox")
        deadline = time.monotonic() + (LOOK_S if started_late else 1.0)
        while True:
            found = ROLES[victim](self.place, attempt)
            if found:
                return found[0]
            if time.monotonic() > deadline or is_over(attempt, stage):
                return None
            if has_ended(self.place, attempt):
                return None
            time.sleep(0.01)

    def _after_a_death(
        self, attempt: Attempt, tree: list[psutil.Process], outcome: Outcome
    ) -> None:
        if set(outcome.killed) & set(SERVERS):
            self.place.klear("up")  # ends what the dead worker left behind
        self._wait_for_the_end(attempt)
        if not set(outcome.killed) & {"flow", "worker"}:
            code = attempt.process.wait() if attempt.process else 1
            if code == 0:
                outcome.broken.append("a run whose stage was killed says that it succeeded")
        for process in left(tree):
            with suppress(psutil.Error):
                outcome.broken.append(f"left running: {process.pid} {process.cmdline()[:6]}")

    def _wait_for_the_end(self, attempt: Attempt) -> None:
        """Of the process; what Prefect believes of the run is looked at when all is over."""
        process = attempt.process
        if process is not None:
            assert eventually(lambda: process.poll() is not None), attempt.text()[-2000:]
        else:
            gone = lambda: not ROLES["flow"](self.place, attempt)  # noqa: E731
            assert eventually(gone), "the engine lives on"
            run = f"flow_runs/{attempt.flow_run}"
            assert eventually(lambda: self.place.call(run)["state_type"] in FINAL)
        self.attempt = None

    def _let_go_if_over(self, attempt: Attempt) -> None:
        process = attempt.process
        if process is not None and process.poll() is not None:
            self.attempt = None

    def abandon(self) -> None:
        """End what is under way, for a driver that gives up."""
        if self.attempt is not None and self.attempt.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.attempt.process.pid, 9)
