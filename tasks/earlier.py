"""Earlier results of a store, each manifest read once: what a plan compares and measures by."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from tasks.store import MANIFEST, InputRef, Manifest, Store

MOST_READ = 40
"""Manifests of a stage that are read, the newest: a plan stays fast in a store of thousands."""
FEWEST_STEPS = 3
LONGEST_STEP = 5.0
"""A step that took this many times the usual one was interrupted by a kill."""
MODELS = ("base", "sft", "rl_math", "rl_code")


@dataclass(frozen=True)
class Past:
    """One published result."""

    manifest: Manifest
    folder: Path

    @cached_property
    def settings(self) -> dict[str, JsonValue]:
        """By dotted name."""
        return flat(self.manifest.settings)

    @cached_property
    def tree(self) -> dict[str, Any]:
        """As they are nested in the manifest."""
        return self.manifest.settings if isinstance(self.manifest.settings, dict) else {}

    @cached_property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.manifest.files.values())

    @property
    def name(self) -> str:
        return f"{self.manifest.stage}/{self.manifest.key}"

    def curve(self, name: str) -> list[float]:
        """Values of one metric over the steps; empty where none was logged."""
        return [float(line["metrics"][name]) for line in self._log if name in line["metrics"]]

    def mean(self, name: str) -> float:
        """Of a metric over the steps; 0 where none was logged."""
        values = self.curve(name)
        return sum(values) / len(values) if values else 0.0

    @cached_property
    def seconds(self) -> float:
        """Of all attempts: the manifest has those of the last one, the log of a training stage the
        times of all its steps. A pause between two attempts counts as one usual step."""
        times = [float(line["time"]) for line in self._log if "time" in line]
        gaps = sorted(b - a for a, b in pairwise(times))
        if len(gaps) < FEWEST_STEPS:
            return self.manifest.seconds
        usual = gaps[len(gaps) // 2]
        steps = sum(usual if gap > LONGEST_STEP * usual else gap for gap in gaps)
        return max(self.manifest.seconds, steps * len(times) / len(gaps))

    @cached_property
    def _log(self) -> list[dict[str, Any]]:
        """The whole lines of metrics.jsonl."""
        found: list[dict[str, Any]] = []
        with suppress(OSError):
            for line in (self.folder / "logs" / "metrics.jsonl").read_text().splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return [line for line in found if isinstance(line.get("metrics"), dict)]


class Earlier:
    """The results of a store, by stage, the newest first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_stage: dict[str, list[Past]] = {}
        self._by_key: dict[tuple[str, str], Manifest | None] = {}

    def of(self, *stages: str) -> Iterator[Past]:
        """Every readable one of the `MOST_READ` newest results of each stage."""
        for stage in stages:
            if stage not in self._by_stage:
                self._by_stage[stage] = self._read(stage)
            yield from self._by_stage[stage]

    def parent(self, past: Past | Manifest, *stages: str) -> Manifest | None:
        """The input that one of `stages` made; None without one, or when it is gone."""
        manifest = past.manifest if isinstance(past, Past) else past
        ref = next((i for i in manifest.inputs if i.stage in stages), None)
        return self._manifest(ref) if ref else None

    def base_of(self, past: Past) -> Manifest | None:
        """The manifest of the base model that a model or an evaluation goes back to."""
        manifest: Manifest | None = past.manifest
        while manifest is not None and manifest.stage != "base":
            manifest = self.parent(manifest, *MODELS)
        return manifest

    def _manifest(self, ref: InputRef) -> Manifest | None:
        key = (ref.stage, ref.key)
        if key not in self._by_key:
            self._by_key[key] = None
            with suppress(OSError, ValidationError):
                self._by_key[key] = self._store.manifest(ref)
        return self._by_key[key]

    def _read(self, stage: str) -> list[Past]:
        found: list[Past] = []
        for path in _newest(self._store.root / stage):
            with suppress(ValidationError, OSError):
                manifest = Manifest.model_validate_json(path.read_bytes())
                found.append(Past(manifest, path.parent))
                self._by_key[manifest.stage, manifest.key] = manifest
        return sorted(found, key=lambda p: p.manifest.created, reverse=True)


def _newest(folder: Path) -> Sequence[Path]:
    """The manifests below `folder` that were written last."""
    dated: list[tuple[float, str]] = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                path = os.path.join(entry.path, MANIFEST)
                dated.append((os.stat(path).st_mtime, path))
    return [Path(path) for _, path in sorted(dated, reverse=True)[:MOST_READ]]


def flat(value: JsonValue, prefix: str = "") -> dict[str, JsonValue]:
    """Nested settings by dotted name; an entry of a list goes by its `name`, else its index."""
    entries: list[tuple[str, JsonValue]]
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        names = [v.get("name") if isinstance(v, dict) else None for v in value]
        entries = [(str(n or i), v) for i, (n, v) in enumerate(zip(names, value, strict=True))]
    else:
        return {prefix: value}
    found: dict[str, JsonValue] = {}
    for name, inner in entries:
        found |= flat(inner, f"{prefix}.{name}" if prefix else name)
    return found
