"""Earlier results of a store, each manifest read once: what a plan compares and measures by."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.settings.base import flat
from tasks.store.store import MANIFEST, Manifest, Store

MOST_READ = 40
"""Manifests of a stage that are read, the newest: a plan stays fast in a store of thousands."""
LONGEST_STEP = 5.0
"""A step that took this many times the usual one was interrupted by a kill."""

MODELS = ("base", "sft", "rl_math", "rl_code")


@dataclass(frozen=True)
class PastResult:
    """One published result."""

    manifest: Manifest
    folder: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """By dotted name."""
        return flat(self.manifest.settings, lists=True)

    @property
    def metrics(self) -> dict[str, float]:
        return self.manifest.metrics

    @cached_property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.manifest.files.values())

    @property
    def name(self) -> str:
        """`sft/0123abcd`."""
        return f"{self.manifest.stage}/{self.manifest.key[:8]}"

    def mean(self, name: str) -> float:
        """Of a metric over the steps of training; 0 where none was logged."""
        values = [line["metrics"][name] for line in self._log if name in line["metrics"]]
        return sum(values) / len(values) if values else 0.0

    @cached_property
    def seconds(self) -> float:
        """Of all attempts: the manifest has those of the last one, the log of a training stage the
        times of all its steps. A pause between two attempts counts as one usual step."""
        gaps = sorted(b - a for a, b in pairwise(n["time"] for n in self._log if "time" in n))
        if not gaps:
            return self.manifest.seconds
        usual = gaps[len(gaps) // 2]
        steps = sum(usual if gap > LONGEST_STEP * usual else gap for gap in gaps)
        return max(self.manifest.seconds, steps * (1 + 1 / len(gaps)))

    @cached_property
    def _log(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with suppress(OSError, ValueError):  # the last line may be cut
            for line in (self.folder / "logs" / "metrics.jsonl").read_text().splitlines():
                found.append(json.loads(line))
        return [line for line in found if "metrics" in line]


class StoreHistory:
    """The results of a store, by stage, the newest first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_stage: dict[str, list[PastResult]] = {}
        self._bases: dict[str, Manifest | None] = {}

    def of(self, *stages: str) -> Iterator[PastResult]:
        """Every readable one of the `MOST_READ` newest results of each stage."""
        for stage in stages:
            if stage not in self._by_stage:
                self._by_stage[stage] = self._read(stage)
            yield from self._by_stage[stage]

    def base_of(self, past: PastResult) -> Manifest | None:
        """The manifest of the base model that a model or an evaluation goes back to; None when
        one on the way is gone."""
        if past.name not in self._bases:
            self._bases[past.name] = self._base_of(past.manifest)
        return self._bases[past.name]

    def _base_of(self, manifest: Manifest) -> Manifest | None:
        if manifest.stage == "base":
            return manifest
        model = next((i for i in manifest.inputs if i.stage in MODELS), None)
        with suppress(OSError, ValidationError):
            return self._base_of(self._store.manifest(model)) if model else None
        return None

    def _read(self, stage: str) -> list[PastResult]:
        dated: list[tuple[float, Path]] = []
        for path in (self._store.root / stage).glob(f"*/{MANIFEST}"):
            with suppress(OSError):
                dated.append((os.stat(path).st_mtime, path))
        found: list[PastResult] = []
        for _, path in sorted(dated, reverse=True)[:MOST_READ]:
            with suppress(ValidationError, OSError):
                manifest = Manifest.model_validate_json(path.read_bytes())
                found.append(PastResult(manifest, path.parent))
        return sorted(found, key=lambda p: p.manifest.created, reverse=True)
