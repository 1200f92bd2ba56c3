"""Puts a card beside every published dataset: facts from its files and from its ancestors.

Written as `README.md` with the front matter of a Hugging Face dataset card, so that the hub can
show it. The settings are printed as they are: read them before you share the folder.
"""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from ..store.lineage import ancestors
from ..store.store import CARD, Manifest, Store
from .page import Page, render

ROWS = ("kept.parquet", "samples.parquet", "scores.parquet", "difficulty.parquet")
"""Where a data stage keeps its rows."""


def write_card(store: Store, manifest: Manifest, work: Path) -> list[str]:
    """Write the card of the dataset in `work`; its name. What is no dataset gets none."""
    names = manifest.files.keys()
    if not names & set(ROWS) or any(n.endswith((".safetensors", "results.json")) for n in names):
        return []
    from huggingface_hub import DatasetCardData  # slow to import

    older = ancestors(store, manifest)
    folders = [work, *(store.folder(m.stage, m.key) for m in older)]
    files = [folder / "sources.json" for folder in folders]  # of `collect`
    read = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    sources = list({source["name"]: source for entries in read for source in entries}.values())
    tables = [n for n in sorted(names) if n.endswith(".parquet") and "/" not in n]
    chain = [*zip(older, folders[1:], strict=True), (manifest, work)]
    steps = [
        (m.stage, *(_by_source(folder / file) for file in (rows, "rejected.parquet")))
        for m, folder in chain
        if (rows := next((name for name in ROWS if name in m.files), ""))
    ]
    settings = {"settings": manifest.settings, "seed": manifest.seed}
    body = render(
        "dataset_card.md",
        manifest=manifest,
        steps=steps,
        names=dict.fromkeys(n for step in steps for counts in step[1:] for n in counts if n),
        sources=sources,
        tables={name: pq.ParquetFile(work / name) for name in tables},
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        older=older,
    )
    subtitle = "Published by klear. Equal settings and inputs give equal bytes."
    page = Page(f"{manifest.stage} ({manifest.key})", subtitle, "", body)
    stated = any(s["licence"] for s in sources)
    licences = sorted({s["licence"].lower() or "unknown" for s in sources}) if stated else []
    front = DatasetCardData(
        license=licences if len(licences) > 1 else "".join(licences) or None,
        configs=[{"config_name": Path(n).stem, "data_files": n} for n in tables],
    )
    text = f"---\n{front.to_yaml()}\n---\n\n{page.markdown()}"
    (work / CARD).write_text(text, encoding="utf-8")
    return [CARD]


def _by_source(path: Path) -> Counter[str]:
    """Rows of each source ("": they name none) in order of appearance; none of a lost file."""
    if not path.is_file():
        return Counter()
    if "source" not in pq.read_schema(path).names:
        return Counter({"": pq.read_metadata(path).num_rows})
    counts = pq.read_table(path, columns=["source"])["source"].value_counts()
    return Counter({entry["values"]: entry["counts"] for entry in counts.to_pylist()})
