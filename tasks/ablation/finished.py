"""The finished experiments that a store or RESULTS.jsonl holds, and what computing them took."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.files import replace_text
from configs.loading import ConfigError
from configs.settings.ablation import Ablation
from eval.records import Record
from tasks.ablation.outcome import Outcome
from tasks.ablation.pages import Cost
from tasks.store.care import ABLATE, ABLATE_VERSION
from tasks.store.lineage import ancestors
from tasks.store.store import Manifest, Store, read_manifest
from tasks.tracking.machine_load import FILE, MARKER, pause_s

RESULTS = "results.json"
JUDGE = "judge"
_LONGEST_GAP = 3.0
"""In pauses between samples. A longer one is the time that a killed stage lay still."""


class Spent(Record):
    """What one stage took."""

    seconds: float
    """By the clock."""
    cpu_seconds: float


class Finished(Record):
    """The result of one experiment at one scale, with what it was made from: a line of a file.

    So that a page can be made anew where the store of some of its results is gone.
    """

    asked: dict[str, Any]
    """What decides whether the experiment is still the same: `question` of it."""
    outcome: Outcome
    grader: int
    """Version of the judge behind all scores and rewards (`GRADER_VERSION`)."""
    rules: int = 3
    """Version of the rule of the intervals (`ABLATE_VERSION`); older lines do not say theirs."""
    created: str
    commit: str
    hardware: str
    digest: str
    stages: dict[str, Spent]
    """`<stage>/<key>` → what it took; everything that the scores were made from."""

    @property
    def made(self) -> str:
        """`on 2026-11-22 at commit 2cede76, grader version 4`."""
        commit = self.commit.removesuffix("+")[:7] or "unknown"
        changed = " with changes" if self.commit.endswith("+") else ""
        told = f"on {self.created[:10]} at commit {commit}{changed}, grader version {self.grader}"
        older = f", intervals by the older rule {self.rules}"
        return told if self.rules == ABLATE_VERSION else told + older

    def rank(self, enough: int) -> tuple[int, int, int, int, str]:
        """More seeds win as far as the experiment asks for them; of those with `enough` the newest
        grader, and then more seeds, newer rules and the later date."""
        seeds = self.outcome.seeds
        return min(seeds, enough), self.grader, seeds, self.rules, self.created


def question(spec: Ablation, profile: str) -> dict[str, Any]:
    """Arms, contrasts, checkpoint, benchmarks and settings: what the experiment's file asks.

    The paper's sentences are not part of it, nor which contrasts the claim rests on, for no figure
    changes with them. An outcome depends on more: on the profile's YAML, on the defaults of
    settings and on the code, which `Finished.commit` names.
    """
    told = spec.model_dump(mode="json")
    scale = told["scales"].get(profile, {})
    return {
        "profile": profile,
        **{name: told[name] for name in ("name", "arms", "scored")},
        "contrasts": [
            {"better": c.better, "than": [*c.than]}
            | ({} if c.measure == "score" else {"measure": c.measure})
            for c in spec.contrasts
        ],
        "scale": {name: scale.get(name) for name in ("benchmarks", "set", "arms")},
    }


def newest(store: Store, spec: Ablation, profile: str) -> Finished | None:
    """The result of this store with the highest rank; None for none.

    A result counts only if it is whole, made by today's rules, and an answer to what the
    experiment's file asks now. `klear ablate` makes others anew from the runs they were made of.
    """
    found: list[Finished] = []
    for path in (store.root / f"{ABLATE}{spec.name}").glob("*/manifest.json"):
        if not store.find(path.parents[1].name, path.parent.name)[0]:
            continue
        manifest = read_manifest(path.parent)
        if RESULTS in manifest.files and manifest.version == ABLATE_VERSION:
            try:
                made_of = Ablation.model_validate(manifest.settings["ablation"])
            except ValidationError:  # by settings of an older commit
                continue
            asked = question(made_of, str(manifest.settings["profile"]))
            if asked == question(spec, profile):
                outcome = Outcome.model_validate_json((path.parent / RESULTS).read_bytes())
                found.append(_finished(store, manifest, asked, outcome))
    return best(spec, profile, *found)


def _finished(store: Store, made: Manifest, asked: dict[str, Any], outcome: Outcome) -> Finished:
    made_from = ancestors(store, made)
    return Finished(
        asked=asked,
        outcome=outcome,
        rules=ABLATE_VERSION,
        grader=max((m.version for m in made_from if m.stage == JUDGE), default=0),
        created=made.created,
        commit=made.git_commit,
        hardware=made.hardware,
        digest=made.digest,
        stages={f"{m.stage}/{m.key}": _spent(store, m) for m in made_from},
    )


def read_finished(path: Path) -> list[Finished]:
    """What an earlier page was made of; nothing if there is no such file."""
    found: list[Finished] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Finished.model_validate_json(line))
        except ValidationError as error:
            advice = "take it out, or the file as it was committed"
            told = f"{path}, line {number} is no result of an ablation; {advice}"
            raise ConfigError([told]) from error
    return found


def write_finished(path: Path, found: Iterable[Finished]) -> None:
    """One line each; whole or not at all, for it may be all that is left of them."""
    replace_text(path, "".join(f"{f.model_dump_json()}\n" for f in found))


def united(found: Iterable[Finished]) -> list[Finished]:
    """Without those whose question a newer one answers with as many seeds, in order of names.

    One with more seeds than all newer ones stays: nothing else may hold it.
    """
    kept: list[Finished] = []
    most: dict[str, int] = {}
    for one in sorted(found, key=lambda f: (f.grader, f.rules, f.created), reverse=True):
        asked = json.dumps(one.asked, sort_keys=True)
        if one.outcome.seeds > most.get(asked, 0):
            most[asked] = one.outcome.seeds
            kept.append(one)
    return sorted(kept, key=lambda f: (f.asked["profile"], f.asked["name"], f.created))


def best(spec: Ablation, profile: str, *found: Finished | None) -> Finished | None:
    """Of those that answer what the experiment asks now, the one with the highest rank."""
    asked = question(spec, profile)
    mine = (f for f in found if f and f.asked == asked)
    return max(mine, key=lambda f: f.rank(spec.seeds), default=None)


def cost_of(found: Iterable[Finished]) -> Cost:
    """Stage time and CPU time of the distinct stages."""
    spent = {name: took for f in found for name, took in f.stages.items()}.values()
    return Cost(len(spent), sum(s.seconds for s in spent), sum(s.cpu_seconds for s in spent))


def _spent(store: Store, manifest: Manifest) -> Spent:
    """CPU time: the area under the stage's samples of its load; 0 for a stage without."""
    cores = manifest.hardware.split(" ")[0]  # `2 × AMD EPYC`
    samples = store.folder(manifest.stage, manifest.key) / FILE
    text = samples.read_text() if samples.exists() else ""
    load, before = 0.0, None
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        pause = pause_s(line["time"] - lines[0]["time"])
        gap = pause if before is None else line["time"] - before
        before = line["time"]
        load += (gap if gap <= _LONGEST_GAP * pause else pause) * line["metrics"].get(MARKER, 0.0)
    cpu = load / 100 * (int(cores) if cores.isdigit() else 1)
    return Spent(seconds=round(manifest.seconds, 2), cpu_seconds=round(cpu, 2))
