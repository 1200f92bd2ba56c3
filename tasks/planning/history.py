"""Earlier results of a store, each manifest read once: what a plan compares and measures by."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from klear.configs.settings.base import flat
from klear.tasks.store.store import MANIFEST, Manifest, Store, UnusableManifest, read_manifest
from klear.training.layout import METRICS, read_lines

MOST_READ = 40
"""Manifests of a stage that are read, the newest: a plan stays fast in a store of thousands."""
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
    def name(self) -> str:
        """`sft/0123abcd`."""
        return f"{self.manifest.stage}/{self.manifest.key[:8]}"

    def sum(self, *metrics: str) -> float:
        return sum(self.manifest.metrics.get(name, 0.0) for name in metrics)

    def mean(self, metric: str) -> float:
        """Over the steps of training; 0 where none was logged."""
        values = [line["metrics"][metric] for line in self._log if metric in line["metrics"]]
        return sum(values) / len(values) if values else 0.0

    @cached_property
    def seconds(self) -> float:
        """The manifest has those of the last attempt; training may have had others, so its steps
        took as long as so many usual ones."""
        times = [line["time"] for line in self._log if "time" in line]
        usual = median([b - a for a, b in pairwise(times)] or [0.0])
        return max(self.manifest.seconds, usual * len(times))

    @cached_property
    def _log(self) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.folder / METRICS) if "metrics" in line]


class StoreHistory:
    """The results of a store, by stage, the newest first."""

    def __init__(self, store: Store) -> None:
        self._root, self._manifest = store.root, cache(store.manifest)
        self._newest = cache(self._read)

    def of(self, *stages: str) -> Iterator[PastResult]:
        """Every readable one of the `MOST_READ` newest results of each stage."""
        for stage in stages:
            yield from self._newest(stage)

    def base_of(self, manifest: Manifest) -> Manifest | None:
        """The manifest of the base model that a model or an evaluation goes back to; None when
        one on the way is gone."""
        if manifest.stage == "base":
            return manifest
        model = next((i for i in manifest.inputs if i.stage in MODELS), None)
        with suppress(UnusableManifest):
            # pyright does not know that a frozen record has a hash.
            return self.base_of(self._manifest(model)) if model else None  # pyright: ignore
        return None

    def _read(self, stage: str) -> list[PastResult]:
        dated: list[tuple[float, Path]] = []
        for path in (self._root / stage).glob(f"*/{MANIFEST}"):
            with suppress(OSError):
                dated.append((path.stat().st_mtime, path.parent))
        found: list[PastResult] = []
        for _, folder in sorted(dated, reverse=True)[:MOST_READ]:
            with suppress(UnusableManifest):
                found.append(PastResult(read_manifest(folder), folder))
        return found
