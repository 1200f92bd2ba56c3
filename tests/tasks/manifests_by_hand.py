"""Results without running a stage: tables as one would leave them, and published manifests as a
store would hold them. And two stages, for the tests of what becomes of results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from klear.configs.settings.base import Settings
from klear.eval.tables import write_table
from klear.tasks.stage.stage import Metrics, stage
from klear.tasks.store.store import MANIFEST, Artifact, FileEntry, InputRef, Manifest


def folder_with(folder: Path, **tables: list[Any]) -> Artifact:
    """A folder with these tables of records, and in it an empty one, `out`."""
    (folder / "out").mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_table(folder / f"{name}.parquet", type(rows[0]), rows)
    return Artifact.of_folder(folder)


def publish(
    root: Path,
    stage: str,
    key: str = "k",
    *,
    version: int = 1,
    settings: Any = None,
    metrics: Mapping[str, float] | None = None,
    seconds: float = 10.0,
    hardware: str = "",
    inputs: tuple[tuple[str, str], ...] = (),
    size: int = 1000,
    created: str = "2026-01-01T00:00:00+00:00",
    curve: Mapping[str, list[float]] | None = None,
) -> Manifest:
    """One result of `stage`; `inputs` are (stage, key), `curve` lines of its metrics.jsonl."""
    folder = root / stage / key
    (folder / "logs").mkdir(parents=True)
    manifest = Manifest(
        stage=stage,
        version=version,
        key=key,
        digest=f"digest of {stage}/{key}",
        settings=settings.model_dump(mode="json") if settings is not None else {},
        inputs=tuple(InputRef(stage=s, key=k, digest=f"digest of {s}/{k}") for s, k in inputs),
        files={"rows": FileEntry(bytes=size, sha256="0")},
        metrics=dict(metrics or {}),
        seconds=seconds,
        pipeline_run="run",
        hardware=hardware,
        created=created,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    for name, values in (curve or {}).items():
        lines = [json.dumps({"step": i, "metrics": {name: v}}) for i, v in enumerate(values)]
        (folder / "logs" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return manifest


class Knobs(Settings):
    text: str = "rows"


@stage(version=1)
def collect(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows.jsonl").write_text(settings.text)
    return {}


@stage(version=1)
def report(out: Path, *inputs: Artifact, settings: Knobs) -> Metrics:
    rows = "".join(i.file("rows.jsonl").read_text() for i in inputs)
    (out / "rows.jsonl").write_text(rows)
    return {}
