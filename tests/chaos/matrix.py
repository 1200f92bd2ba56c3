"""`make chaos`: SIGKILL of everything, in every stage, at moments drawn from a seed.

    python tests/chaos/matrix.py [--kills 100] [--vllm 4] [--seed N] [--until STAGE] [--keep FOLDER]

An undisturbed run of the miniature profile first, then the same run in a fresh store under a
schedule of SIGKILLs: whoever ends a run is followed by the same command. At the end every result
and every curve must equal the undisturbed one's. Then a vLLM server is killed under a stage that
asks it (`served`). Prints the seed first, one line a kill, a table and one JSON line; exit code 1
on any broken promise, and when somebody was never met in a stage that has them.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import invariants
import served
from home import EVERY_STAGE
from miniature import Place, place_in
from schedule import Strike, draw, kills
from strike import Attacker, Outcome

from configs.loading import load_profile

FORMS = 5
ROUNDS = 8
SOONER = 0.3  # in the next round, for what came too late
AT_ONCE = 2  # rounds that draw a moment; the next ones strike as soon as the stage has begun
Say = Callable[[str], None]


@dataclass
class Report:
    """All strikes and what did not hold."""

    seed: int
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    """Victims that were never there in time: nothing is known of them."""
    attempts: int = 0

    @property
    def kills(self) -> int:
        return sum(len(o.killed) for o in self.outcomes)

    def by_victim(self) -> Counter[str]:
        return Counter(v for o in self.outcomes for v in o.killed)

    def hit(self) -> set[tuple[str, str]]:
        """The (stage, victim) pairs that were met."""
        return {(o.strike.stage, v) for o in self.outcomes for v in o.killed}


def undisturbed(place: Place, until: str) -> tuple[invariants.Manifests, invariants.Curves]:
    """Results and curves of a run in a store of its own."""
    store = place.folder / "undisturbed"
    place.run("--until", until, KLEAR_STORE=str(store))
    return invariants.manifests(store), invariants.curves(store)


def chaos(
    place: Place,
    seed: int,
    until: str,
    strikes: Sequence[Strike] = (),
    wanted: int = 0,
    forms: int = FORMS,
    say: Say = print,
) -> Report:
    """Kill by a schedule and check; a victim that was missed gets its stage computed again.

    Without `strikes` they are drawn: at least `wanted` kills, `forms` of them in runs that were
    started from the web form.
    """
    report, began = Report(seed), time.monotonic()
    say(f"seed {seed}")
    results, drawn = undisturbed(place, until)
    seconds = {stage: float(m["seconds"]) for stage, m in results.items()}
    say(f"undisturbed: {len(results)} stages in {time.monotonic() - began:.0f} s")
    settings: Any = load_profile(str(place.profile)).model_dump(mode="json")
    attacker = Attacker(place, seconds, settings)
    strikes = strikes or _drawn(random.Random(seed), until, wanted, forms)
    for round_ in range(ROUNDS):
        _round(attacker, strikes, until, report, say)
        strikes = missed(report, strikes, round_ + 1)
        if not strikes or round_ + 1 == ROUNDS:
            break
        say(f"round {round_ + 1} missed {kills(strikes)}; their stages are computed again")
        for stage in {s.stage for s in strikes}:
            shutil.rmtree(place.store / stage)
    report.unmet = [f"{v} in {s.stage}" for s in strikes for v in s.victims]
    report.attempts = attacker.attempts
    report.broken += check(place, results, drawn)
    report.seconds = time.monotonic() - began
    return report


def _drawn(chance: random.Random, until: str, wanted: int, forms: int) -> list[Strike]:
    stages = EVERY_STAGE[: EVERY_STAGE.index(until) + 1]
    strikes = draw(chance, stages, forms)
    while (lacking := wanted - kills(strikes)) > 0:
        strikes += [s for s in draw(chance, stages, 0) if s.ends_a_run][:lacking]
    return sorted(strikes, key=lambda s: stages.index(s.stage))


def _round(
    attacker: Attacker, strikes: Sequence[Strike], until: str, report: Report, say: Say
) -> None:
    try:
        for strike in strikes:
            outcome = attacker.carry_out(strike)
            outcome.broken += invariants.nothing_half(attacker.place)
            report.outcomes.append(outcome)
            report.broken += outcome.broken
            say(f"{report.kills:4d}  {line(outcome)}")
        attacker.finish(until)
    finally:
        attacker.abandon()


def missed(report: Report, strikes: Sequence[Strike], rounds: int) -> list[Strike]:
    """What has to be tried again: sooner, and after some rounds at once; deaths first, for the
    stage may end after the others."""
    hit, sooner = report.hit(), SOONER if rounds < AT_ONCE else 0.0
    again = [
        replace(s, victims=missed, share=s.share * sooner, by_progress=False)
        for s in strikes
        if (missed := tuple(v for v in s.victims if (s.stage, v) not in hit))
    ]
    return sorted(again, key=lambda s: (EVERY_STAGE.index(s.stage), not s.ends_a_run))


def check(place: Place, results: invariants.Manifests, drawn: invariants.Curves) -> list[str]:
    """Everything that must hold at the end."""
    return [
        *invariants.no_orphan(place),
        *invariants.no_lock(place),
        *invariants.nothing_half(place),
        *invariants.cleaned(place),
        *invariants.equal_digests(results, place.store),
        *invariants.equal_curves(drawn, place.store),
        *invariants.told_once(place),
        *invariants.prefect_knows(place),
    ]


def line(outcome: Outcome) -> str:
    strike = outcome.strike
    how = "progress" if strike.by_progress else "time"
    told = f"{strike.stage:17} at {strike.share:5.0%} of its {how:8}"
    told += f" {', '.join(outcome.killed) or 'nobody'}" + (" (form)" if strike.form else "")
    if outcome.missed:
        told += f"; missed {', '.join(outcome.missed)}"
    if outcome.lost_s is not None:
        told += f"; kept {outcome.resumed or 'nothing'}, lost {outcome.lost_s:.1f} s"
    return told + "".join(f"\n      BROKEN: {b}" for b in outcome.broken)


def table(report: Report) -> str:
    """Per victim: kills, how the run went on, work lost."""
    lines = [
        f"{'victim':14}{'kills':>6}{'run again':>11}{'went on':>9}{'median lost s':>15}{'most':>7}"
    ]
    for victim, count in sorted(report.by_victim().items()):
        mine = [o for o in report.outcomes if victim in o.killed]
        ended = [o for o in mine if o.lost_s is not None]
        lost = [o.lost_s or 0.0 for o in ended]
        middle = f"{statistics.median(lost):.1f}" if lost else "–"
        most = f"{max(lost):.1f}" if lost else "–"
        row = f"{victim:14}{count:>6}{len(ended):>11}{count - len(ended):>9}"
        lines.append(f"{row}{middle:>15}{most:>7}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="SIGKILL everything, in every stage.")
    seed = os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32)
    parser.add_argument("--seed", type=int, default=int(seed), help="default: CHAOS_SEED, or new")
    parser.add_argument("--kills", type=int, default=100, help="at least so many")
    parser.add_argument("--vllm", type=int, default=served.KILLS, help="of a vLLM server; 0: none")
    parser.add_argument("--until", default="report", choices=EVERY_STAGE)
    parser.add_argument("--forms", type=int, default=FORMS, help="runs from the web form")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    wanted = parser.parse_args()
    folder = wanted.keep or Path(tempfile.mkdtemp(prefix="klear-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    report, vllm = everything(folder, wanted)
    print(table(report))
    broken = report.broken + vllm.broken
    for wrong in broken:
        print(f"BROKEN (seed {report.seed}): {wrong}")
    unmet_in_all = [*report.unmet, *(f"vLLM {victim}" for victim in vllm.missed)]
    for unmet in unmet_in_all:
        print(f"never met (seed {report.seed}): {unmet}")
    if broken:
        print(f"the stores and logs are in {folder}")
    elif wanted.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    said = {
        "bench": "chaos", "seed": report.seed, "kills": report.kills + len(vllm.killed),
        "attempts": report.attempts, "seconds": round(report.seconds),
        "by_victim": dict(sorted(report.by_victim().items())),
        "vllm": {"killed": vllm.killed, "answers_kept": vllm.kept, "stage_starts": vllm.starts},
        "unmet": unmet_in_all, "broken": len(broken),
    }  # fmt: skip
    print(json.dumps(said))
    return 1 if broken or unmet_in_all else 0


def everything(folder: Path, wanted: argparse.Namespace) -> tuple[Report, served.Found]:
    """The matrix of the miniature, then the kills of a vLLM server under a stage that asks it."""

    def say(text: str) -> None:
        print(text, flush=True)

    with place_in(folder) as place:
        report = chaos(
            place, wanted.seed, wanted.until, wanted=wanted.kills, forms=wanted.forms, say=say
        )
    if not wanted.vllm:
        return report, served.Found()
    apart = folder / "served"
    apart.mkdir()
    return report, served.run(apart, served.draw(random.Random(wanted.seed), wanted.vllm), say)


if __name__ == "__main__":
    sys.exit(main())
