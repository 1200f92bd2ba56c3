"""Puts a card beside every published dataset: facts from its files and from its ancestors.

Written as `README.md` with the front matter of a Hugging Face dataset card, so that the hub can
show it. The settings are printed as they are: read them before you share the folder.
"""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from eval.tables import row_groups
from tasks.report.page import Figure, Page, render
from tasks.store.lineage import ancestors
from tasks.store.store import CARD, PLOTS, Manifest, Store

ROWS = ("kept.parquet", "samples.parquet", "scores.parquet", "difficulty.parquet")
"""Where a data stage keeps its rows."""
Step = tuple[str, Counter[str], Counter[str]]
"""(stage, rows kept, rows rejected) by source; "" where rows name none."""


def write_card(store: Store, manifest: Manifest, work: Path) -> list[str]:
    """Write the card of the dataset in `work`, and its funnel; the names of both files.

    A checkpoint, a score or a report is no dataset and gets none.
    """
    names = manifest.files.keys()
    if not names & set(ROWS) or any(n.endswith((".safetensors", "results.json")) for n in names):
        return []
    from huggingface_hub import DatasetCardData  # both are slow to import

    from tasks.report.plots import funnel_plot

    older = ancestors(store, manifest)
    folders = [work, *(store.folder(m.stage, m.key) for m in older)]
    files = [folder / "sources.json" for folder in folders]  # of `collect`
    read = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    sources = list({source["name"]: source for found in read for source in found}.values())
    tables = [n for n in sorted(names) if n.endswith(".parquet") and "/" not in n]
    steps = [*_steps(store, manifest), _step(manifest, work)]
    bars = [(stage, kept.total(), rejected.total()) for stage, kept, rejected in steps]
    figure = Figure("funnel", funnel_plot(bars), "Rows kept and rejected by every step")
    settings = {"settings": manifest.settings, "seed": manifest.seed}
    body = render(
        "dataset_card.md",
        last=bars[-1],
        digest=manifest.digest,
        figure=figure,
        steps=[stage for stage, *_ in steps],
        rows=_source_rows(steps),
        sources=sources,
        files=[
            (name, f"{table.metadata.num_rows:,}", ", ".join(table.schema_arrow.names),
             manifest.files[name].sha256)
            for name in tables
            for table in [pq.ParquetFile(work / name)]
        ],
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        inputs=[(m.stage, m.key, m.digest) for m in older],
    )  # fmt: skip
    subtitle = "Published by klear. Equal settings and inputs give equal bytes."
    page = Page(f"{manifest.stage} ({manifest.key})", subtitle, "", body)
    licences = sorted({s["licence"].lower() for s in sources if s["licence"]})
    front = DatasetCardData(
        license=licences if len(licences) > 1 else "".join(licences) or None,
        configs=[{"config_name": Path(n).stem, "data_files": n} for n in tables],
    )
    (work / PLOTS).mkdir(exist_ok=True)
    (work / PLOTS / "funnel.svg").write_text(figure.svg, encoding="utf-8")
    text = f"---\n{front.to_yaml()}\n---\n\n{page.markdown()}"
    (work / CARD).write_text(text, encoding="utf-8")
    return [CARD, f"{PLOTS}/funnel.svg"]


def _steps(store: Store, manifest: Manifest) -> list[Step]:
    """The ancestors along the first input of each stage, oldest first: the way the rows came."""
    chain: list[Step] = []
    with suppress(FileNotFoundError):
        while manifest.inputs:
            manifest = store.manifest(manifest.inputs[0])
            with suppress(FileNotFoundError):
                store.fetch(manifest)
            chain.append(_step(manifest, store.folder(manifest.stage, manifest.key)))
    return chain[::-1]


def _step(manifest: Manifest, folder: Path) -> Step:
    kept = next((name for name in ROWS if name in manifest.files), "")
    return manifest.stage, _by_source(folder / kept), _by_source(folder / "rejected.parquet")


def _by_source(path: Path) -> Counter[str]:
    """Rows of each source, in the order in which sources first appear; none of a lost file."""
    counts: Counter[str] = Counter()
    if path.is_file():
        if "source" not in pq.read_schema(path).names:
            return Counter({"": pq.read_metadata(path).num_rows})
        for table in row_groups(path, columns=["source"]):
            for entry in table.column("source").value_counts().to_pylist():
                counts[entry["values"]] += entry["counts"]
    return counts


def _source_rows(steps: Sequence[Step]) -> list[list[str]]:
    """One row a source, and their sum: what every step kept of what it was given."""
    rows = []
    for name in dict.fromkeys(n for _, kept, rejected in steps for n in (*kept, *rejected) if n):
        known = ["" not in kept and bool(kept or rejected) for _, kept, rejected in steps]
        cells = [_of(kept[name], rejected[name]) for _, kept, rejected in steps]
        rows.append([name, *(c if said else "–" for c, said in zip(cells, known, strict=True))])
    return [*rows, ["all", *(_of(kept.total(), rejected.total()) for _, kept, rejected in steps)]]


def _of(kept: int, rejected: int) -> str:
    return f"{kept:,} of {kept + rejected:,}" if rejected else f"{kept:,}"
