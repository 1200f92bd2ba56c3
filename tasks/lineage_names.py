"""Finding a result by whatever name somebody has of it: a score, a checkpoint, a file, a run."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.store import Manifest, Store, file_sha256

EVALUATION = "evaluate_"
SPOKEN = {"math_rl": "rl_math", "code_rl": "rl_code", "math RL": "rl_math", "code RL": "rl_code",
          "SFT": "sft"}  # fmt: skip
RUN_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
HEX = re.compile(r"[0-9a-f]{6,64}")
NUMBER = re.compile(r"(\d+\.\d+)\s*%?")
AVERAGE = "avg"
LARGEST_FIRST = 3
"""Files of a folder that are hashed to find whose copy it is."""


@dataclass(frozen=True)
class Named:
    """One result that a name means; `score` is the metric that was named, '' for none."""

    manifest: Manifest
    score: str = ""


def find_named(store: Store, manifests: Sequence[Manifest], name: str) -> list[Named]:
    """What `name` means among `manifests` (oldest first), the newest last; empty if nothing.

    A name is: stage, stage/key (both may be cut), a digest or key; a path in the store, or a copy
    of one of its files or folders elsewhere; an MLflow run's id or address; a score as the page of
    a run names it, [checkpoint/]benchmark[/metric], or its value.
    """
    name = name.strip().rstrip("/")
    path = Path(name).expanduser()
    looked_up = (
        lambda: _by_stage(manifests, name),
        lambda: _by_path(store, manifests, path) if _is_there(path) else [],
        lambda: _by_run(manifests, name),
        lambda: _by_score(manifests, name),
        lambda: _by_value(manifests, name),
        lambda: _by_digest(manifests, name),
    )
    for look in looked_up:
        if found := look():
            return found
    return []


def scores_of(manifest: Manifest) -> list[str]:
    """The benchmarks that an evaluation scored."""
    if not manifest.stage.startswith(EVALUATION):
        return []
    return [n.removesuffix(f"/{AVERAGE}") for n in manifest.metrics if n.endswith(f"/{AVERAGE}")]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no file system has such a name
        return False


def _by_stage(manifests: Iterable[Manifest], name: str) -> list[Named]:
    stage, _, key = name.partition("/")
    stage = SPOKEN.get(stage, stage)
    return [Named(m) for m in manifests if m.stage == stage and m.key.startswith(key)]


def _by_digest(manifests: Iterable[Manifest], name: str) -> list[Named]:
    if not HEX.fullmatch(name):
        return []
    return [Named(m) for m in manifests if m.digest.startswith(name) or m.key.startswith(name)]


def _by_run(manifests: Iterable[Manifest], name: str) -> list[Named]:
    ids = RUN_ID.findall(name)
    if not ids:
        return []
    every = list(manifests)
    children = [Named(m) for m in every if m.mlflow_run == ids[-1]]
    return children or [Named(m) for m in every if m.pipeline_run == ids[-1]]


def _by_path(store: Store, manifests: Sequence[Manifest], path: Path) -> list[Named]:
    """A place in the store, or a copy of something in it."""
    inside = path.absolute().resolve()
    if inside.is_relative_to(store.root.resolve()):
        parts = inside.relative_to(store.root.resolve()).parts
        if len(parts) >= 2:
            return [Named(m) for m in manifests if (m.stage, m.key) == parts[:2]]
        return [Named(m) for m in manifests if parts and m.stage == parts[0]]
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    files.sort(key=lambda p: -p.stat().st_size)
    for file in files[:LARGEST_FIRST]:
        size = file.stat().st_size
        if not any(f.bytes == size for m in manifests for f in m.files.values()):
            continue
        sha = file_sha256(file)
        if found := [m for m in manifests if any(f.sha256 == sha for f in m.files.values())]:
            return [Named(m) for m in found]
    return []


def _by_score(manifests: Iterable[Manifest], name: str) -> list[Named]:
    parts = name.split("/")
    checkpoint = SPOKEN.get(parts[0], parts[0]).removeprefix(EVALUATION)
    found = []
    for m in manifests:
        benchmarks = scores_of(m)
        rest = parts[1:] if m.stage == EVALUATION + checkpoint else parts
        if not rest or rest[0] not in benchmarks:
            continue
        metric = "/".join(rest) if len(rest) > 1 else f"{rest[0]}/{AVERAGE}"
        if metric in m.metrics:
            found.append(Named(m, metric))
    return found


def _by_value(manifests: Iterable[Manifest], name: str) -> list[Named]:
    """A printed average: a share, or percent as the report has it."""
    match = NUMBER.fullmatch(name)
    if not match:
        return []
    digits = len(match[1].partition(".")[2])
    wanted = float(match[1])
    return [
        Named(m, f"{b}/{AVERAGE}")
        for m in manifests
        for b in scores_of(m)
        if wanted in (round(m.metrics[f"{b}/{AVERAGE}"], digits),
                      round(100 * m.metrics[f"{b}/{AVERAGE}"], digits))
    ]  # fmt: skip


def statement_of(store: Store, manifest: Manifest, benchmark: str) -> dict | None:
    """The result of one benchmark with everything that makes it comparable."""
    path = store.folder(manifest.stage, manifest.key) / "results.json"
    if not path.exists():
        return None
    return next((r for r in json.loads(path.read_text()) if r["name"] == benchmark), None)
