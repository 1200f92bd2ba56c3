"""`make chaos`: SIGKILL of everything, in every stage, at moments drawn from a seed.

    python tests/chaos/matrix.py [--kills 100] [--seed N] [--until STAGE] [--keep FOLDER]

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
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import invariants
import served
from home import EVERY_STAGE
from place import Place, place_in
from strikes import Attacker, Outcome, Strike, draw, kills

from configs.loading import load_profile

FORMS = 5  # runs from the web form
ROUNDS = 8
SOONER = 0.3  # in the next round, for what came too late
AT_ONCE = 2  # rounds that draw a moment; the next ones strike as soon as the stage has begun


@dataclass
class Report:
    """All strikes and what did not hold."""

    outcomes: list[Outcome] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    """Victims that were never there in time: nothing is known of them."""
    attempts: int = 0

    @property
    def by_victim(self) -> Counter[str]:
        return Counter(v for o in self.outcomes for v in o.killed)

    def missed(self, strikes: Sequence[Strike], rounds: int) -> list[Strike]:
        """What has to be tried again: sooner, and after some rounds at once; deaths first, for the
        stage may end after the others."""
        hit = {(o.strike.stage, v) for o in self.outcomes for v in o.killed}
        sooner = SOONER if rounds < AT_ONCE else 0.0
        again = [
            replace(s, victims=left, share=s.share * sooner)
            for s in strikes
            if (left := tuple(v for v in s.victims if (s.stage, v) not in hit))
        ]
        return sorted(again, key=lambda s: (EVERY_STAGE.index(s.stage), not s.ends_a_run))


def chaos(place: Place, until: str, strikes: Sequence[Strike]) -> Report:
    """Kill by a schedule and check; a victim that was missed gets its stage computed again."""
    report, began = Report(), time.monotonic()
    store = place.folder / "undisturbed"
    place.run("--until", until, KLEAR_STORE=str(store))
    results, drawn = invariants.manifests(store), invariants.curves(store)
    print(f"undisturbed: {len(results)} stages in {time.monotonic() - began:.0f} s", flush=True)
    settings: Any = load_profile(str(place.profile)).model_dump(mode="json")
    seconds = {stage: float(m["seconds"]) for stage, m in results.items()}
    attacker = Attacker(place, seconds, settings)
    for round_ in range(ROUNDS):
        try:
            for strike in strikes:
                outcome = attacker.carry_out(strike)
                outcome.broken += invariants.nothing_half(place)
                report.outcomes.append(outcome)
                print(f"{report.by_victim.total():4d}  {line(outcome)}", flush=True)
            attacker.finish(until)
        finally:
            attacker.abandon()
        strikes = report.missed(strikes, round_ + 1)
        if not strikes:
            break
        if round_ + 1 < ROUNDS:
            print(f"round {round_ + 1} missed {kills(strikes)}; their stages are computed again")
            for stage in {s.stage for s in strikes}:
                shutil.rmtree(place.store / stage)
    report.unmet = [f"{v} in {s.stage}" for s in strikes for v in s.victims]
    report.attempts = attacker.attempts
    report.broken = [
        *(wrong for outcome in report.outcomes for wrong in outcome.broken),
        *invariants.sound(place),
        *invariants.equal_digests(results, place.store),
        *invariants.equal_curves(drawn, place.store),
        *invariants.told_once(place),
        *invariants.prefect_knows(place),
    ]
    return report


def line(outcome: Outcome) -> str:
    strike = outcome.strike
    told = f"{strike.stage:17} at {strike.share:5.0%} {', '.join(outcome.killed) or 'nobody'}"
    told += " (form)" if strike.form else ""
    missed = [victim for victim in strike.victims if victim not in outcome.killed]
    told += f"; missed {', '.join(missed)}" if missed else ""
    return told + "".join(f"\n      BROKEN: {b}" for b in outcome.broken)


def drawn(chance: random.Random, until: str, wanted: int) -> list[Strike]:
    """At least so many kills, in the order of the stages."""
    stages = EVERY_STAGE[: EVERY_STAGE.index(until) + 1]
    strikes = draw(chance, stages, FORMS)
    while (lacking := wanted - kills(strikes)) > 0:
        strikes += [s for s in draw(chance, stages, 0) if s.ends_a_run][:lacking]
    return sorted(strikes, key=lambda s: stages.index(s.stage))


def main() -> int:
    parser = argparse.ArgumentParser(description="SIGKILL everything, in every stage.")
    seed = os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32)
    parser.add_argument("--seed", type=int, default=int(seed), help="default: CHAOS_SEED, or new")
    parser.add_argument("--kills", type=int, default=100, help="at least so many")
    parser.add_argument("--until", default="report", choices=EVERY_STAGE)
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    wanted = parser.parse_args()
    print(f"seed {wanted.seed}", flush=True)
    folder = wanted.keep or Path(tempfile.mkdtemp(prefix="klear-chaos-"))
    (folder / "served").mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with place_in(folder) as place:
        chance = random.Random(wanted.seed)
        report = chaos(place, wanted.until, drawn(chance, wanted.until, wanted.kills))
    vllm = served.run(folder / "served", served.draw(random.Random(wanted.seed), served.KILLS))
    for victim, count in sorted(report.by_victim.items()):
        print(f"{victim:14}{count:>6}")
    broken = report.broken + vllm.broken
    for wrong in broken:
        print(f"BROKEN (seed {wanted.seed}): {wrong}")
    unmet = [*report.unmet, *(f"vLLM {victim}" for victim in vllm.missed)]
    for one in unmet:
        print(f"never met (seed {wanted.seed}): {one}")
    if broken:
        print(f"the stores and logs are in {folder}")
    elif wanted.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    said = {
        "bench": "chaos", "seed": wanted.seed, "attempts": report.attempts,
        "kills": report.by_victim.total() + len(vllm.killed),
        "seconds": round(time.monotonic() - began),
        "by_victim": dict(sorted(report.by_victim.items())),
        "vllm": {"killed": vllm.killed, "answers_kept": vllm.kept, "stage_starts": vllm.starts},
        "unmet": unmet, "broken": len(broken),
    }  # fmt: skip
    print(json.dumps(said))
    return 1 if broken or unmet else 0


if __name__ == "__main__":
    sys.exit(main())
