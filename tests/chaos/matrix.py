"""`make chaos`: SIGKILL of everything, in every stage, at moments drawn from a seed.

    python tests/chaos/matrix.py [--kills 100] [--seed N]

An undisturbed run of the miniature profile first, then the same run in a fresh store under a
schedule of SIGKILLs: whoever ends a run is followed by the same command. As soon as they are made,
every result and its curves must equal the undisturbed one's. Then a vLLM server is killed under a
stage that asks it (`served`). Prints the seed first, one line a kill, a list of what was broken and
one JSON line; exit code 1 on any broken promise, and when somebody was never met in a stage that
has them.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import invariants
import served
from home import EVERY_STAGE
from place import ROLES, SERVERS, Attempt, Place, kill, place_in, reach
from processes import below, left

WITH_A_JOB = (
    "base", "sft", "rl_math", "rl_code",
    "evaluate_base", "evaluate_sft", "evaluate_rl_math", "evaluate_rl_code",
)  # fmt: skip
# Not rl_math, which has no programs to run, nor evaluate_base, whose model writes none.
JUDGED = ("judge", "judge_rl", "rl_code", *WITH_A_JOB[5:])
ENDS_A_RUN = {"flow", "child", "job"}
ROUNDS = 6  # the first at the drawn moments, the next ones as soon as a stage has begun
LOOK_S = 600.0  # for what a stage starts to be there, unless the stage is over


class Strike(NamedTuple):
    """One or several SIGKILLs in one stage, when `share` of its usual seconds are behind it."""

    stage: str
    victims: tuple[str, ...]
    share: float

    @property
    def ends_a_run(self) -> bool:
        return bool(ENDS_A_RUN & set(self.victims))


@dataclass
class Report:
    """All strikes and what did not hold."""

    killed: list[tuple[str, str]] = field(default_factory=list)
    """(stage, victim) in their order."""
    broken: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    """Victims that were never there in time: nothing is known of them."""
    attempts: int = 0

    @property
    def by_victim(self) -> Counter[str]:
        return Counter(victim for _, victim in self.killed)

    def missed(self, strikes: Sequence[Strike]) -> list[Strike]:
        """What has to be tried again; deaths first, for the stage may end after the others."""
        again = [
            Strike(s.stage, rest, 0.0)
            for s in strikes
            if (rest := tuple(v for v in s.victims if (s.stage, v) not in self.killed))
        ]
        return sorted(again, key=lambda s: (EVERY_STAGE.index(s.stage), not s.ends_a_run))


def draw(chance: random.Random, stages: Sequence[str], wanted: int = 0) -> list[Strike]:
    """The strikes in the order of the stages: every stage meets every victim it has, and runs are
    ended until there are `wanted` kills."""

    def one(stage: str, victims: Sequence[str]) -> Strike:
        latest = 0.9 if stage in WITH_A_JOB else 0.5  # a slow machine may be quick by then
        drawn = tuple(chance.sample(victims, len(victims)))
        return Strike(stage, drawn, round(chance.uniform(0.0, latest), 3))

    def deaths(stage: str) -> list[Strike]:
        who = ("flow", "child", "job") if stage in WITH_A_JOB else ("flow", "child")
        return [one(stage, (victim,)) for victim in who]

    strikes: list[Strike] = []
    for stage in stages:
        below_it = [one(stage, ("judge worker", "sandbox"))] if stage in JUDGED else []
        # last, for after those that the run survives the stage may be over
        strikes += [*deaths(stage), *below_it, one(stage, SERVERS)]
    while sum(len(s.victims) for s in strikes) < wanted:
        strikes += [s for stage in stages for s in deaths(stage)]
    return sorted(strikes, key=lambda s: stages.index(s.stage))


class Attacker:
    """Carries strikes out on one run, which is started again whenever a strike ended it."""

    def __init__(self, place: Place, seconds: dict[str, float], report: Report) -> None:
        self.place, self.seconds, self.report = place, seconds, report
        self.attempt: Attempt | None = None

    def carry_out(self, strike: Strike) -> None:
        """Start or go on with the run, wait for the moment, SIGKILL, look around."""
        attempt, killed = self.run_until(strike.stage), list[str]()
        if reach(attempt, strike.stage, strike.share * self.seconds.get(strike.stage, 0.0)):
            tree = [p for top in ROLES["flow"](attempt) for p in (top, *below(top.pid))]
            for victim in strike.victims:
                here = self._find(victim, attempt, strike.stage)
                if here is not None and kill(here):
                    killed.append(victim)
                    tree += [here, *below(here.pid)] if victim not in SERVERS else []
            if set(killed) & set(SERVERS):
                self.place.klear("up")  # ends what a dead worker left behind
            if ENDS_A_RUN & set(killed):
                attempt.wait()
                if "flow" not in killed and attempt.process.wait() == 0:
                    self.report.broken.append("a run whose stage was killed says it succeeded")
                for process in left(tree):
                    with suppress(psutil.Error):
                        problem = f"left running: {process.pid} {process.cmdline()[:6]}"
                        self.report.broken.append(problem)
        self.report.killed += [(strike.stage, victim) for victim in killed]
        self.report.broken += invariants.nothing_half(self.place)
        line = f"{strike.stage:17} at {strike.share:5.0%} {', '.join(killed) or 'nobody'}"
        print(f"{len(self.report.killed):4d}  {line}", flush=True)

    def run_until(self, stage: str) -> Attempt:
        """The run that is under way, or the same command again. It ends after the stage: else it
        would have passed the next ones while servers start again."""
        if self.attempt is not None and self.attempt.until != stage:
            self.attempt.wait()
        if self.attempt is None or self.attempt.has_ended():
            self.attempt = self.place.attempt(until=stage)
            self.report.attempts += 1
        return self.attempt

    @contextmanager
    def ending(self) -> Iterator[None]:
        """A driver that gives up leaves no run behind."""
        try:
            yield
        except BaseException:
            if self.attempt is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self.attempt.process.pid, 9)
            raise

    def _find(self, victim: str, attempt: Attempt, stage: str) -> psutil.Process | None:
        """Judges start their workers and sandboxes when there is work for them: some patience."""
        started_late = victim in ("child", "job", "judge worker", "sandbox")
        deadline = time.monotonic() + (LOOK_S if started_late else 1.0)
        while not (victims := ROLES[victim](attempt)):
            if time.monotonic() > deadline or attempt.is_over(stage) or attempt.has_ended():
                return None
            time.sleep(0.01)
        return victims[0]


def chaos(place: Place, until: str, strikes: Sequence[Strike]) -> Report:
    """Kill by a schedule and check; a victim that was missed gets its stage computed again."""
    report, began = Report(), time.monotonic()
    store = place.folder / "undisturbed"
    place.run("--until", until, KLEAR_STORE=str(store))
    results, drawn = invariants.manifests(store), invariants.curves(store)
    print(f"undisturbed: {len(results)} stages in {time.monotonic() - began:.0f} s", flush=True)
    seconds = {stage: float(m["seconds"]) for stage, m in results.items()}
    attacker = Attacker(place, seconds, report)

    def compare() -> None:
        """At once, for the next round deletes what it computes again."""
        for wrong in invariants.equal_results(results, drawn, place.store):
            if wrong not in report.broken:
                report.broken.append(wrong)
                print(f"DIFFERS: {wrong}", flush=True)

    with attacker.ending():
        for _ in range(ROUNDS):
            for stage in {s.stage for s in strikes}:
                shutil.rmtree(place.store / stage, ignore_errors=True)
            for strike in strikes:
                attacker.carry_out(strike)
                compare()
            last = attacker.run_until(until)
            last.wait()
            compare()
            if last.process.wait():
                report.broken.append(f"the last attempt failed:\n{last.text()[-3000:]}")
                break
            if not (strikes := report.missed(strikes)):
                break
    report.unmet = [f"{v} in {s.stage}" for s in strikes for v in s.victims]
    report.broken += [
        *invariants.sound(place),
        *invariants.missing(results, place.store),
        *invariants.several(place.store),
        *invariants.told_once(place),
        *invariants.prefect_knows(place),
    ]
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="SIGKILL everything, in every stage.")
    seed = os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32)
    parser.add_argument("--seed", type=int, default=int(seed), help="default: CHAOS_SEED, or new")
    parser.add_argument("--kills", type=int, default=100, help="at least so many")
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="klear-chaos-"))
    (folder / "served").mkdir()
    began = time.monotonic()
    with place_in(folder) as place:
        strikes = draw(random.Random(wanted.seed), EVERY_STAGE, wanted.kills)
        report = chaos(place, EVERY_STAGE[-1], strikes)
    vllm = served.run(folder / "served", served.draw(random.Random(wanted.seed), served.KILLS))
    broken = report.broken + vllm.broken
    for wrong in broken:
        print(f"BROKEN (seed {wanted.seed}): {wrong}")
    unmet = [*report.unmet, *(f"vLLM {victim}" for victim in vllm.missed)]
    for one in unmet:
        print(f"never met (seed {wanted.seed}): {one}")
    if broken:
        print(f"the stores and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    summary = {
        "bench": "chaos", "seed": wanted.seed, "attempts": report.attempts,
        "kills": len(report.killed) + len(vllm.killed),
        "seconds": round(time.monotonic() - began),
        "by_victim": dict(sorted(report.by_victim.items())),
        "vllm": {"killed": vllm.killed, "answers_kept": vllm.kept, "stage_starts": vllm.starts},
        "unmet": unmet, "broken": len(broken),
    }  # fmt: skip
    print(json.dumps(summary))
    return 1 if broken or unmet else 0


if __name__ == "__main__":
    sys.exit(main())
