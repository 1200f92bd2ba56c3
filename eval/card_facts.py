"""What the card of a published dataset says: its steps, tables, sources, settings and lineage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.records import Record


class SourceFacts(Record):
    """One source as `collect` read it; empty where nobody said."""

    name: str
    dataset: str = ""
    """Hugging Face dataset id, or the local files."""
    revision: str = ""
    """The commit that was read, where the hub could tell."""
    licence: str = ""


@dataclass(frozen=True)
class Step:
    """One stage on the way here: rows kept and rejected, by source ("" where rows name none)."""

    stage: str
    kept: Mapping[str, int]
    rejected: Mapping[str, int]


@dataclass(frozen=True)
class TableFacts:
    """One parquet file of the dataset."""

    name: str
    rows: int
    columns: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class CardFacts:
    """All a card says; `steps` begin with the sources and end with this dataset."""

    stage: str
    key: str
    digest: str
    seed: int | None
    settings: Mapping[str, str]
    steps: Sequence[Step]
    inputs: Sequence[tuple[str, str, str]]
    """(stage, key, digest) of everything the dataset was made from, oldest first."""
    tables: Sequence[TableFacts]
    sources: Sequence[SourceFacts]
