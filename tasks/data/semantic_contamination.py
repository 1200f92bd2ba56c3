"""Near misses: rows whose embedding is near a benchmark item's, for n-grams need not find a problem
in other words or with other numbers. The row and the item stand beside each other on a page.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...configs.files import files_in
from ...configs.settings.data import HASHING, NearMissSettings
from ...eval.records import Record
from ...eval.records.tables import ArrowWriter, arrow_schema, column, row_groups, to_records
from ..engine.parts import computed_parts
from ..engine.stage import Metrics, stage
from ..report.page import Page, render
from ..store.store import SCRATCH, Artifact
from .contamination import COLUMNS, LEAK_COVERAGE, shortened
from .split_rows import TablePart, table_parts

NEAR, PAGE = "near_misses.parquet", "near_misses.html"

ROWS_AT_ONCE = 512
FITTED_GROUPS = 8
"""Row groups, evenly spaced, whose texts say how common a piece of text is."""
SHOWN = 50
PIECES, FEATURES = (3, 5), 1 << 18
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
Vectors = Any
"""Unit rows, one a text: a dense or a sparse matrix."""


class NearMiss(Record):
    """A row and the item of a benchmark that is nearest to it."""

    row_number: int
    """Place of the row in its file, from 1: ids may repeat."""
    row_id: str
    source: str
    benchmark: str
    item_id: str
    cosine: float
    leak: bool
    """n-grams find it, too: the row holds half of the item or more."""
    row: str
    item: str


SCHEMA, _ = arrow_schema(NearMiss)


def hashing_encoder(sample: Sequence[str]) -> Callable[[Sequence[str]], Vectors]:
    """TF-IDF of pieces of words of three to five characters, hashed; numbers are all one number.

    `sample` says how common a piece is. A text without letters is near to nothing.
    """
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    pieces = HashingVectorizer(
        analyzer="char_wb",
        ngram_range=PIECES,
        n_features=FEATURES,
        alternate_sign=False,
        preprocessor=lambda text: _NUMBER.sub("0", text.lower()),
    )
    weights = TfidfTransformer(sublinear_tf=True).fit(pieces.transform(sample))
    return lambda texts: weights.transform(pieces.transform(texts))


def encoder_of(model: str, url: str, source: Path, items: Sequence[str]) -> Any:
    """The encoder of that name, at an endpoint where there is a `url`. Raises EngineError where it
    cannot be had."""
    if model == HASHING:
        with pq.ParquetFile(source) as file:
            spaced = np.linspace(0, max(file.num_row_groups - 1, 0), FITTED_GROUPS).astype(int)
            groups = np.unique(spaced).tolist() if file.num_row_groups else []
            texts = file.read_row_groups(groups, ["prompt"])["prompt"].to_pylist()
        return hashing_encoder([*items, *texts])
    from ...training.engines.embeddings import endpoint_encoder, local_encoder  # torch

    return endpoint_encoder(url, model) if url else local_encoder(model)


@lru_cache(maxsize=1)
def _prepared(model: str, url: str, source: Path, items: Path) -> tuple[Any, pa.Table, Any]:
    """The encoder, the items (columns of COLUMNS) and their vectors: once in every process."""
    table = pq.read_table(items, columns=COLUMNS)
    texts = table["prompt"].to_pylist()
    embed = encoder_of(model, url, source, texts)
    return embed, table, embed(texts) if texts else np.zeros((0, 1), np.float32)


def near_part(
    part: TablePart, folder: Path, *, source: Path, items: Path, settings: NearMissSettings
) -> None:
    """Write the nearest item of each benchmark to every row of a part, from `cosine` on."""
    embed, table, vectors = _prepared(settings.model, settings.base_url, source, items)
    names = table["source"].to_numpy()
    places_of = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    before = part.before
    with ArrowWriter(folder / NEAR, SCHEMA) as near, pq.ParquetFile(source) as file:
        groups = list(range(part.first, part.last))
        for batch in file.iter_batches(ROWS_AT_ONCE, groups, COLUMNS, use_threads=False):
            product = embed(batch.column("prompt").to_pylist()) @ vectors.T
            cosines = np.asarray(product.todense() if hasattr(product, "todense") else product)
            best = [places[cosines[:, places].argmax(1)] for places in places_of.values()]
            item = np.stack(best, 1) if best else np.zeros((len(batch), 0), np.int64)
            nearest = np.take_along_axis(cosines, item, 1)
            row, benchmark = np.nonzero(nearest >= settings.cosine)
            short, standing = batch.take(pa.array(row)), table.take(item[row, benchmark])
            columns = {
                "row_number": before + 1 + row,
                "row_id": short.column("id"),
                "source": short.column("source"),
                "benchmark": standing["source"],
                "item_id": standing["id"],
                "cosine": np.round(nearest[row, benchmark].astype(float), 4),
                "leak": np.zeros(len(row), np.bool_),
                "row": shortened(short.column("prompt")),
                "item": shortened(standing["prompt"]),
            }
            near.write(pa.table(columns, schema=SCHEMA))
            before += len(batch)


def encoder_files(settings: NearMissSettings) -> list[tuple[str, Path]]:
    """Those of a local encoder."""
    if settings.base_url:
        return []
    return files_in(Path(settings.model))


@stage(version=1, reads=encoder_files, group="data")
def near_misses(
    out: Path, problems: Artifact, benchmarks: Artifact, decontaminated: Artifact,
    *, settings: NearMissSettings,
) -> Metrics:  # fmt: skip
    """List the rows whose embedding is near a benchmark item's, beside what n-grams `found`.

    `near_misses.parquet` has of each row and benchmark the nearest item, from `cosine` on. The
    metrics `near/<source>/<benchmark>` count rows that are no leak by n-grams. Raises EngineError
    where the encoder cannot be had; the parts that it did are kept.
    """
    source, items = problems.file("kept.parquet"), benchmarks.file("kept.parquet")
    compute = partial(near_part, source=source, items=items, settings=settings)
    rows = settings.runtime.rows_per_part
    parts = computed_parts(
        out / SCRATCH / f"rows-{rows}", table_parts(source, rows), compute, settings.runtime.workers
    )
    columns = ["row_number", "benchmark", "item_id"]
    shared = pq.read_table(decontaminated.file("hits.parquet"), columns=[*columns, "coverage"])
    half = shared.filter(pc.field("coverage") >= LEAK_COVERAGE)
    leaks = set(zip(*(half[name].to_pylist() for name in columns), strict=True))
    counts: Counter[tuple[str, str, bool]] = Counter()
    with closing(parts), ArrowWriter(out / NEAR, SCHEMA) as near:
        for folder in parts:
            for table in row_groups(folder / NEAR):
                pairs = zip(*(table[name].to_pylist() for name in columns), strict=True)
                are_leaks = [pair in leaks for pair in pairs]
                place = SCHEMA.get_field_index("leak")
                near.write(table.set_column(place, "leak", pa.array(are_leaks, pa.bool_())))
                names = (table[name].to_pylist() for name in ("source", "benchmark"))
                counts.update(zip(*names, are_leaks, strict=True))
    _write_page(out, settings, Counter(column(items, "source")))
    missed = {f"near/{a}/{b}": n for (a, b, is_leak), n in counts.items() if not is_leak}
    total = sum(missed.values())
    return {"near": total, "leaks": counts.total() - total, **missed}


def _write_page(out: Path, settings: NearMissSettings, sizes: Counter[str]) -> None:
    """The nearest pairs that are no leaks by n-grams; memory holds the texts of those shown."""
    import pyarrow.dataset as ds

    few = pq.read_table(out / NEAR, columns=["benchmark", "cosine", "leak"])
    counts = Counter(zip(few["benchmark"].to_pylist(), few["leak"].to_pylist(), strict=True))
    places = np.flatnonzero(~few["leak"].to_numpy(zero_copy_only=False))
    order = np.argsort(-few["cosine"].to_numpy()[places], kind="stable")[:SHOWN]
    rows = ds.dataset(out / NEAR).take(pa.array(places[order], pa.int64()))
    body = render(
        "near_misses.md",
        settings=settings,
        benchmarks=[(b, n, counts[b, False], counts[b, True]) for b, n in sizes.items()],
        shown=list(to_records(rows, NearMiss)),
        total=len(places),
    )
    subtitle = f"pairs of a row and an item that n-grams do not find: {len(places):,}"
    label = f"{settings.model}, cosine ≥ {settings.cosine:g}"
    page = Page("Near misses", subtitle, label, body)
    (out / PAGE).write_text(page.html(), encoding="utf-8")
