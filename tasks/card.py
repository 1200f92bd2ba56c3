"""Puts a card beside every published dataset: facts from its files and from its ancestors."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
from pydantic import JsonValue, TypeAdapter

from eval.card_facts import CardFacts, SourceFacts, Step, TableFacts
from eval.tables import row_groups
from tasks.lineage import ancestors
from tasks.store import CARD, PLOTS, Manifest, Store

SOURCES = "sources.json"
ROWS = ("kept.parquet", "samples.parquet", "scores.parquet", "difficulty.parquet")
"""Where a data stage keeps its rows."""
_SOURCES = TypeAdapter(tuple[SourceFacts, ...])


def write_card(store: Store, manifest: Manifest, work: Path) -> list[str]:
    """Write the card of the dataset in `work`, and its funnel; the names of both files.

    A checkpoint, a score or a report is no dataset and gets none.
    """
    names = manifest.files.keys()
    if not names & set(ROWS) or any(n.endswith((".safetensors", "results.json")) for n in names):
        return []
    from eval.dataset_card import dataset_card, funnel_svg  # draws with matplotlib: slow to import

    older = ancestors(store, manifest)
    chain = []
    for step in _first_inputs(store, manifest):
        with suppress(FileNotFoundError):
            store.fetch(step)
        chain.append((step, store.folder(step.stage, step.key)))
    facts = CardFacts(
        stage=manifest.stage,
        key=manifest.key,
        digest=manifest.digest,
        seed=manifest.seed,
        settings=dict(_flat(manifest.settings)),
        steps=[_step(m, folder) for m, folder in (*chain, (manifest, work))],
        inputs=[(m.stage, m.key, m.digest) for m in older],
        tables=[_table(manifest, work, name) for name in sorted(names) if _is_table(name)],
        sources=list(_sources(work, *(store.folder(m.stage, m.key) for m in older))),
    )
    (work / PLOTS).mkdir(exist_ok=True)
    (work / PLOTS / "funnel.svg").write_text(funnel_svg(facts.steps), encoding="utf-8")
    (work / CARD).write_text(dataset_card(facts), encoding="utf-8")
    return [CARD, f"{PLOTS}/funnel.svg"]


def _first_inputs(store: Store, manifest: Manifest) -> list[Manifest]:
    """The ancestors along the first input of each stage, oldest first: the way the rows came."""
    chain: list[Manifest] = []
    while manifest.inputs:
        try:
            manifest = store.manifest(manifest.inputs[0])
        except FileNotFoundError:
            break
        chain.append(manifest)
    return chain[::-1]


def _step(manifest: Manifest, folder: Path) -> Step:
    kept = next((folder / name for name in ROWS if name in manifest.files), None)
    rejected = folder / "rejected.parquet"
    return Step(
        stage=manifest.stage,
        kept=_rows_by_source(kept) if kept else {},
        rejected=_rows_by_source(rejected) if rejected.exists() else {},
    )


def _rows_by_source(path: Path) -> Counter[str]:
    """Rows of each source, in the order in which sources first appear; none of a lost file."""
    if not path.exists():
        return Counter()
    if "source" not in pq.read_schema(path).names:
        return Counter({"": pq.read_metadata(path).num_rows})
    counts: Counter[str] = Counter()
    for table in row_groups(path, columns=["source"]):
        for entry in table.column("source").value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
    return counts


def _is_table(name: str) -> bool:
    return name.endswith(".parquet") and "/" not in name


def _table(manifest: Manifest, work: Path, name: str) -> TableFacts:
    columns = tuple(pq.read_schema(work / name).names)
    rows = pq.read_metadata(work / name).num_rows
    return TableFacts(name, rows, columns, manifest.files[name].sha256)


def _sources(*folders: Path) -> Iterator[SourceFacts]:
    """The facts that `collect` left, each source once."""
    seen: set[str] = set()
    for path in (folder / SOURCES for folder in folders):
        for source in _SOURCES.validate_json(path.read_bytes()) if path.exists() else ():
            if source.name not in seen:
                seen.add(source.name)
                yield source


def _flat(value: JsonValue, name: str = "") -> Iterator[tuple[str, str]]:
    """Settings as dotted names; unset ones and empty lists are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        for i, inner in enumerate(value):
            label = inner.get("name") if isinstance(inner, dict) else None
            yield from _flat(inner, f"{name}.{label or i}")
    elif value not in (None, "", []):
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name, text
