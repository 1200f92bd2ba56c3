"""Results without running a stage: tables as one would leave them, and published manifests as a
store would hold them; and the rows of such tables. And two stages, for the tests of what becomes
of results."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from klear.configs.settings.base import Settings
from klear.eval.records import Problem, Rejected
from klear.eval.records.tables import read_table, write_table
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.store.store import MANIFEST, Artifact, FileEntry, InputRef, Manifest

FIRST = "2026-01-01T00:00:00+00:00"


def folder_with(folder: Path, **tables: list[Any]) -> Artifact:
    """A folder with these tables of records, and in it an empty one, `out`."""
    (folder / "out").mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_table(folder / f"{name}.parquet", type(rows[0]) if rows else Problem, rows)
    return Artifact.of_folder(folder)


def kept_in(out: Path, kind: type[Any] = Problem) -> list[Any]:
    return list(read_table(out / "kept.parquet", kind))


def rejected_in(out: Path) -> list[Rejected]:
    return list(read_table(out / "rejected.parquet", Rejected))


def jsonl(path: Path, *rows: Any) -> Path:
    """A file with a line a row: texts as they are, others as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def publish(
    root: Path,
    stage: str,
    key: str = "k",
    *,
    settings: Any = None,
    inputs: tuple[tuple[str, str], ...] = (),
    size: int = 1000,
    curve: Mapping[str, list[float]] = MappingProxyType({}),
    **changes: Any,
) -> Manifest:
    """One result of `stage`; `inputs` are (stage, key), `curve` lines of its metrics.jsonl, `known`
    other entries of its manifest."""
    folder = root / stage / key
    (folder / "logs").mkdir(parents=True)
    facts = {"version": 1, "seconds": 10.0, "pipeline_run": "run", "created": FIRST, **changes}
    facts["inputs"] = [InputRef(stage=s, key=k, digest=f"digest of {s}/{k}") for s, k in inputs]
    facts["settings"] = settings.model_dump(mode="json") if settings is not None else {}
    facts["files"] = {"rows": FileEntry(bytes=size, sha256="0")}
    manifest = Manifest(stage=stage, key=key, digest=f"digest of {stage}/{key}", **facts)
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    for name, values in curve.items():
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
