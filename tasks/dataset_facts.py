"""An artifact's rows as the tracking server names them, from the parquet footers alone."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.store import Artifact
from tasks.tracked import Dataset

MAIN = ("kept.parquet", "samples.parquet", "scores.parquet", "difficulty.parquet")
"""The table that a stage is read for, where it has several."""
DIGEST_CHARS = 16


def dataset_of(artifact: Artifact) -> Dataset | None:
    """None: a checkpoint, a report, or nothing but pages."""
    folder = artifact.folder
    tables = sorted(folder.glob("*.parquet"))
    if not tables or (folder / "checkpoint").exists():
        return None
    main = next((folder / n for n in MAIN if (folder / n).exists()), tables[0])
    return Dataset(
        name=artifact.stage,
        digest=artifact.digest[:DIGEST_CHARS],
        source={"uri": str(folder), "artifact": f"{artifact.stage}/{artifact.key}"},
        columns=[(f.name, _type(f.type)) for f in pq.read_schema(main)],
        profile=_profile(main, tables),
    )


def _profile(main: Path, tables: list[Path]) -> dict[str, float]:
    rows = {path.stem: pq.read_metadata(path).num_rows for path in tables}
    return {
        "num_rows": rows[main.stem],
        **{f"rows {name}": count for name, count in rows.items()},
        "bytes": sum(path.stat().st_size for path in tables),
    }


def _type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "long"
    if pa.types.is_floating(kind):
        return "double"
    return "string"  # nested columns are JSON to a reader
