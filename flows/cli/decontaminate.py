"""`klear decontaminate IN --against FILE… --out DIR`: the decontaminate stage for any file.

kept.jsonl or kept.parquet           rows that share nothing, as they were
rejected.jsonl or rejected.parquet   the others, with one more column `reason`
hits.parquet                         (row, benchmark item) pairs that share an n-gram
decontamination.html                 what they mean: common wording, real leaks, both texts
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from configs.loading import load_group
from configs.settings.data import DecontaminateSettings
from configs.settings.explain import ConfigError
from eval.row_files import SUFFIXES, read_rows
from eval.tables import ArrowWriter
from tasks.data.overlaps.decontamination_page import PAGE, Decided, write_page
from tasks.data.overlaps.ngrams import Item, NgramIndex
from tasks.data.overlaps.overlaps import HITS, Overlaps
from tasks.data.overlaps.row_filter import NoSuchField, filter_rows, printable, row_id

ITEM_FIELDS = ("prompt", "problem", "question", "text", "question_content")
SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev", "eval", "data"})
INPUTS = (".jsonl", ".jsonl.gz", ".parquet")
OUTPUTS = ("kept.jsonl", "kept.parquet", "rejected.jsonl", "rejected.parquet", "hits.parquet", PAGE)


def decontaminate(
    source: Path,
    /,
    *,
    against: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    out: Path,
    n: int = 9,
    normalize: str = "alnum",
    min_coverage: float = 0.0,
    text_field: str = "prompt",
) -> int:
    """Remove problems that share n-grams with benchmarks.

    Args:
        source: JSONL, JSONL.gz or parquet.
        against: Benchmarks, same formats; text in prompt, problem, question, text or
            question_content, or in --text-field.
        out: Folder to write.
        n: Words an n-gram.
        normalize: Words: alnum, runs of letters and digits; or whitespace, split at white space.
        min_coverage: Reject only if this share of an item's n-grams is shared; default: any.
        text_field: Field of IN.
    """
    options = (f"n={n}", f"normalize={normalize}", f"min_coverage={min_coverage}")
    settings = load_group(DecontaminateSettings, options)
    _check_paths(source, against, out)
    try:
        items = _items(list(dict.fromkeys(against)), text_field)
        index = NgramIndex(items, settings.n, settings.normalize)
        with _finished_folder(out) as work:
            counts = _filter(source, text_field, settings, index, work)
    except NoSuchField as error:
        raise ConfigError([f"{error}; choose one by --text-field"]) from error
    except ValueError as error:  # a damaged file
        print(f"klear decontaminate: {error}", file=sys.stderr)
        return 1
    _print_summary(counts, source, out, n)
    return 0


def _check_paths(source: Path, against: Sequence[Path], out: Path) -> None:
    for path, suffixes in [(source, INPUTS), *((p, SUFFIXES) for p in against)]:
        if not path.is_file():
            raise ConfigError([f"no file {path}"])
        if not path.name.endswith(suffixes):
            raise ConfigError([f"{path} is none of {', '.join(suffixes)}"])
    if out.exists() and not out.is_dir():
        raise ConfigError([f"--out {out} is a file; name a folder"])
    if out.resolve() == source.resolve().parent and source.name in OUTPUTS:
        raise ConfigError([f"--out {out} would replace {source}; name another folder"])


def benchmark_names(paths: list[Path]) -> list[str]:
    """File stems; the folder's name instead of a split's, and both where one is not unique."""
    stems = [path.name.split(".")[0] for path in paths]
    parents = [path.resolve().parent.name for path in paths]
    names = [p if s in SPLITS and p else s for s, p in zip(stems, parents, strict=True)]
    times = Counter(names)
    both = [f"{p}/{s}" for s, p in zip(stems, parents, strict=True)]
    return [n if times[n] == 1 else b for n, b in zip(names, both, strict=True)]


def _items(paths: list[Path], text_field: str) -> Iterator[Item]:
    """Every item of the benchmarks; ids that a file repeats get their row's number."""
    fields = dict.fromkeys((text_field, *ITEM_FIELDS))
    for path, benchmark in zip(paths, benchmark_names(paths), strict=True):
        ids: set[str] = set()
        number = 0
        try:
            for row in read_rows(path):
                number, value = row.number, row.value
                if value is None:
                    raise ValueError(f"{path} line {number}: {row.error}")
                texts = [text for f in fields if isinstance(text := value.get(f), str)]
                if not texts:
                    has = f"it has: {', '.join(value)}"
                    wanted = ", ".join(fields)
                    raise ConfigError([f"{path} row {number} has no text in {wanted}; {has}"])
                id_ = printable(row_id(value.get("id"), number))
                id_ = f"{id_} (row {number})" if id_ in ids else id_
                ids.add(id_)
                yield Item(benchmark, id_, printable(texts[0]))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} after row {number}: text that is no UTF-8") from error
        if not number:
            raise ConfigError([f"{path} holds no rows: nothing would be protected"])


@contextmanager
def _finished_folder(out: Path) -> Iterator[Path]:
    """A work folder whose files replace earlier results in `out` when all are written."""
    created = not out.exists()
    work = out / f".partial-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        yield work
        for name in OUTPUTS:
            if (work / name).exists():
                os.replace(work / name, out / name)
            else:  # of an earlier run on another format
                (out / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if created and not any(out.iterdir()):
            out.rmdir()


def _filter(
    source: Path, field: str, settings: DecontaminateSettings, index: NgramIndex, work: Path
) -> dict[str, float]:
    """Writes every file below `work`; what was counted."""
    with ArrowWriter(work / "hits.parquet", HITS) as hits:
        overlaps = Overlaps(index, settings.min_coverage, hits)
        counts = filter_rows(source, field, overlaps.decide, work)
    decided = Decided(
        rows={source.name: counts["kept"] + counts["rejected"]},
        removed=counts["rejected"] - counts["malformed"],
        min_coverage=settings.min_coverage,
        normalise=settings.normalize,
        unlisted=counts["unlisted"],
        malformed=counts["malformed"],
    )
    page = write_page(work, index, decided)
    return {**counts, **page.metrics(), **index.metrics()}


def _print_summary(counts: dict[str, float], source: Path, out: Path, n: int) -> None:
    count = {name: f"{int(value):,}" for name, value in counts.items()}
    print(f"{counts['kept']:,} kept, {counts['rejected']:,} rejected → {out}")
    if not counts["kept"] + counts["rejected"]:
        print(f"{source} holds no rows")
    print(
        f"{count['rows_any_ngram']} rows share a {n}-gram or a whole short item with "
        f"{count['items']} benchmark items: {count['rows_coverage_50']} real leaks that share half "
        f"of an item or more, {count['rows_boilerplate']} with common wording only"
    )
    for name in (n.removeprefix("rows_hit/") for n in counts if n.startswith("rows_hit/")):
        leaked = count.get(f"rows_leaked/{name}", "0")
        print(f"  {name}: {count[f'rows_hit/{name}']} rows, {leaked} real leaks")
    if counts["malformed"]:
        print(f"{count['malformed']} of the rejected are malformed: their reasons name the place")
    if counts["items_without_words"]:
        print(f"{count['items_without_words']} items hold no words and can match nothing")
    print(f"page: {out / PAGE}")
