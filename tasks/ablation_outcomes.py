"""The outcomes of the ablations that a store or a file holds, and what computing them took."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.ablation import Ablation
from configs.load import ConfigError
from eval.ablation_outcome import Outcome
from eval.ablation_table import Cost
from eval.records import Record
from tasks.lineage import ancestors
from tasks.machine_load import FILE, MARKER, pause_s
from tasks.manifest import Manifest, read_manifest
from tasks.store import Store
from tasks.store_care import ABLATE, ABLATE_VERSION

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
    created: str
    commit: str
    hardware: str
    digest: str
    stages: dict[str, Spent]
    """`<stage>/<key>` → what it took; everything that the scores were made from."""

    @property
    def made(self) -> str:
        """`on 2026-11-22, grader version 4`."""
        return f"on {self.created[:10]}, grader version {self.grader}"

    @property
    def rank(self) -> tuple[int, int, str]:
        """The newest grader wins, then more seeds, and of equally many the latest."""
        return self.grader, self.outcome.seeds, self.created


def question(spec: Ablation, profile: str) -> dict[str, Any]:
    """Arms, contrasts, checkpoint, benchmarks and settings: all that an outcome depends on.

    The paper's sentences are not part of it.
    """
    return _question(spec.model_dump(mode="json"), profile)


def _question(told: dict[str, Any], profile: str) -> dict[str, Any]:
    scale = (told.get("scales") or {}).get(profile) or {}
    return {
        "profile": profile,
        **{name: told.get(name) for name in ("name", "arms", "scored")},
        "contrasts": [
            {name: contrast.get(name) for name in ("better", "than")}
            for contrast in told.get("contrasts") or ()
        ],
        "scale": {name: scale.get(name) for name in ("benchmarks", "set", "arms")},
    }


def newest(store: Store, spec: Ablation, profile: str) -> Finished | None:
    """The result of this store and of today's rules with the highest rank; None for none.

    A result counts only if it is whole, and if the experiment is still what its file says now.
    """
    found: list[Finished] = []
    for path in sorted((store.root / f"{ABLATE}{spec.name}").glob("*/manifest.json")):
        if not store.find(path.parents[1].name, path.parent.name)[0]:
            continue
        manifest = read_manifest(path.parent)
        if manifest.version != ABLATE_VERSION:  # its figures were made by other rules
            continue
        if RESULTS in manifest.files and _asked(manifest) == question(spec, profile):
            found.append(_finished(store, manifest, question(spec, profile)))
    return max(found, key=lambda f: f.rank, default=None)


def _finished(store: Store, manifest: Manifest, asked: dict[str, Any]) -> Finished:
    made_from = ancestors(store, manifest)
    folder = store.folder(manifest.stage, manifest.key)
    return Finished(
        asked=asked,
        outcome=Outcome.model_validate_json((folder / RESULTS).read_bytes()),
        grader=max((m.version for m in made_from if m.stage == JUDGE), default=0),
        created=manifest.created,
        commit=manifest.git_commit,
        hardware=manifest.hardware,
        digest=manifest.digest,
        stages={f"{m.stage}/{m.key}": _spent(store, m) for m in made_from},
    )


def _asked(manifest: Manifest) -> dict[str, Any] | None:
    match manifest.settings:
        case {"ablation": dict(told), "profile": str(profile)}:
            return _question(told, profile)
    return None


def read_finished(path: Path) -> list[Finished]:
    """What an earlier page was made of; nothing if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found: list[Finished] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Finished.model_validate_json(line))
        except ValidationError as error:
            advice = "take it out, or the file as it was committed"
            raise ConfigError(
                [f"{path}, line {number} is no result of an ablation; {advice}"]
            ) from error
    return found


def write_finished(path: Path, found: Iterable[Finished]) -> None:
    """One line each; whole or not at all, for it may be all that is left of them."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(f"{f.model_dump_json()}\n" for f in found), encoding="utf-8")
    os.replace(partial, path)


def united(found: Iterable[Finished]) -> list[Finished]:
    """Of those that answer the same question the one with the highest rank, in order of names."""
    kept: dict[str, Finished] = {}
    for one in found:
        asked = json.dumps(one.asked, sort_keys=True)
        kept[asked] = max(one, kept.get(asked, one), key=lambda f: f.rank)
    return sorted(kept.values(), key=lambda f: (f.asked["profile"], f.asked["name"], f.created))


def best(spec: Ablation, profile: str, *found: Finished | None) -> Finished | None:
    """Of those that answer what the experiment asks now, the one with the highest rank."""
    asked = question(spec, profile)
    return max((f for f in found if f and f.asked == asked), key=lambda f: f.rank, default=None)


def cost_of(found: Iterable[Finished]) -> Cost:
    """Stage time and CPU time of the distinct stages."""
    spent = {name: took for f in found for name, took in f.stages.items()}
    return Cost(
        stages=len(spent),
        seconds=sum(s.seconds for s in spent.values()),
        cpu_seconds=sum(s.cpu_seconds for s in spent.values()),
    )


def _spent(store: Store, manifest: Manifest) -> Spent:
    samples = store.folder(manifest.stage, manifest.key) / FILE
    cpu = cpu_seconds(samples, _cores(manifest.hardware))
    return Spent(seconds=round(manifest.seconds, 2), cpu_seconds=round(cpu, 2))


def cpu_seconds(path: Path, cores: int) -> float:
    """The area under a stage's samples of CPU load; 0 for a stage without."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    total, before = 0.0, None
    for line in lines:
        pause = pause_s(line["time"] - lines[0]["time"])
        gap = pause if before is None else line["time"] - before
        before = line["time"]
        gap = gap if gap <= _LONGEST_GAP * pause else pause
        total += gap * cores * line["metrics"].get(MARKER, 0.0) / 100
    return total


def _cores(hardware: str) -> int:
    """`2 × AMD EPYC` → 2."""
    first = hardware.split(" ")[0]
    return int(first) if first.isdigit() else 1
