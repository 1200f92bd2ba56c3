"""`klear decontaminate SOURCE… --against BENCHMARK…`: how much of each benchmark is in each source;
with `--out`, a file without the rows that share text.

Stages of the store count, without a server: sources are collected once, and the same command goes
on after a kill. A row without an answer counts as any other: only its prompt is looked at.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...configs.loading import load_group
from ...configs.machine import load_machine
from ...configs.settings.base import read_catalogue
from ...configs.settings.data import HASHING, DecontaminateSettings, NearMissSettings
from ...configs.settings.explain import ConfigError, nearest
from ...configs.settings.sources import CollectSettings, Source
from ...eval.records.row_files import SUFFIXES, find_files, read_rows, stem
from ...eval.rows.fields import BadField
from ...eval.rows.shape import text_of_problem


def decontaminate(
    *sources: str,
    against: Annotated[tuple[str, ...], Parameter(consume_multiple=True)],
    out: Path | None = None,
    n: int = 9,
    normalize: str = "alnum",
    min_coverage: float = 0.0,
    min_words: int = 1,
    text_field: str = "",
    near: float | None = None,
    embed: str = HASHING,
    embed_url: str = "",
) -> int:
    """Count the problems that share text with benchmarks, or remove them.

    Args:
        sources: Names of the catalogue, data files, or NAME=FILES: a name for files (globs), which
            have the fields of the catalogue's entry where it has one of that name. With --out: one
            file, JSONL, JSON, CSV, TSV (also .gz, .zst) or parquet.
        against: Benchmarks, named in the same ways.
        out: Folder for the rows that are kept and those that are not; default: count only.
        n: Words an n-gram.
        normalize: Words: alnum, runs of letters and digits; or whitespace, split at white space.
        min_coverage: Reject only if this share of an item's n-grams is shared; default: any.
        min_words: Items of fewer words match nothing; default: an item shorter than N counts whole.
        text_field: Field of the file that --out filters; default: by its shape.
        near: Count near misses, too: rows whose embedding has this cosine with an item's, or more,
            and that are no leak by n-grams.
        embed: The encoder: hashing (built in; numbers are all one), a folder or hub id (id@commit)
            of a model whose vector is the mean of its tokens, or the endpoint's name of one.
        embed_url: An endpoint with /v1/embeddings, https://…/v1; OPENAI_API_KEY holds its key.
    """
    rule = (f"n={n}", f"normalize={normalize}", f"min_coverage={min_coverage}")
    settings = load_group(DecontaminateSettings, (*rule, f"min_words={min_words}"))
    near_settings = _near_settings(near, embed, embed_url)
    if not sources:
        raise ConfigError(["name at least one source: a name of the catalogue, or a file"])
    from ...training.engines.interface import EngineError

    try:
        if out is None:
            if text_field:
                raise ConfigError(["--text-field is for the file that --out filters"])
            _count(sources, against, settings, near_settings)
        else:
            if near_settings or len(sources) > 1:
                raise ConfigError(["--out filters one file by its n-grams: without --near"])
            from .filter_rows import filter_file

            source, *benchmarks = map(_data_file, (*sources, *against))
            filter_file(source, tuple(benchmarks), out, settings, text_field)
    except (ValueError, OSError, EngineError) as error:
        print(f"klear decontaminate: {error}", file=sys.stderr)
        return 1
    return 0


def _data_file(text: str) -> Path:
    path = Path(text)
    if not text.endswith(SUFFIXES) or not path.is_file():
        wrong = "does not exist" if text.endswith(SUFFIXES) else f"is none of {', '.join(SUFFIXES)}"
        raise ConfigError([f"with --out, files are named: {text} {wrong}"])
    return path


def _count(
    sources: Sequence[str],
    against: Sequence[str],
    settings: DecontaminateSettings,
    near: NearMissSettings | None,
) -> None:
    """Print a table of sources and benchmarks, and where the pages are."""
    to_read, to_protect = (
        CollectSettings(root="/", sources=tuple(map(source_of, names)))
        for names in (sources, against)
    )
    from rich.console import Console

    from ...tasks.data.collect import collect
    from ...tasks.data.contamination import PAGE, count_by_source
    from ...tasks.data.decontaminate import decontaminate
    from ...tasks.data.semantic_contamination import PAGE as NEAR_PAGE
    from ...tasks.data.semantic_contamination import near_misses
    from ...tasks.engine.run import Run, active
    from ...tasks.observe.pages import Cards
    from ...tasks.observe.terminal import Terminal
    from ...tasks.store.shared import open_store

    missed = None
    display = Terminal(Console(stderr=True, highlight=False, soft_wrap=True))
    store = open_store(load_machine())
    with display.bars, active(Run(store=store, observers=(Cards(store), display))):
        problems = collect(settings=to_read)
        benchmarks = collect.named("benchmarks")(settings=to_protect)
        result = decontaminate(problems, benchmarks, settings=settings)
        if near:
            missed = near_misses(problems, benchmarks, result, settings=near)
        for shown in filter(None, (problems, result, missed)):
            store.fetch(shown)
    print(f"rows that share a {settings.n}-gram, and of these those with half of an item or more:")
    if near:
        print(f"near: others whose cosine with an item is {near.cosine:g} or more ({near.model})")
    counts = count_by_source(result.file("hits.parquet"))
    lines = _table(problems.metrics, benchmarks.metrics, counts, missed and missed.metrics)
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    for name, *cells in lines:
        print(name.ljust(first), *map(str.rjust, cells, others), sep="  ")
    if rejected := problems.metrics["rejected"] + benchmarks.metrics["rejected"]:
        why = f"{problems.folder / 'rejected.parquet'} says why"
        print(f"rows that cannot be read: {rejected:,.0f}; {why}")
    print(f"page: {result.file(PAGE)}")
    if missed:
        print(f"near: {missed.file(NEAR_PAGE)}")


def _table(
    rows: Mapping[str, float],
    items: Mapping[str, float],
    counts: Mapping[tuple[str, str], tuple[int, int]],
    near: Mapping[str, float] | None,
) -> list[list[str]]:
    """Sources by benchmarks, from the metrics of what collected them: `shared / leaked`, and the
    near misses where they were looked for."""
    sources, benchmarks = (
        [name.removeprefix("kept/") for name in metrics if name.startswith("kept/")]
        for metrics in (rows, items)
    )
    lines = [["", "rows"]]
    for benchmark in benchmarks:
        title = f"{benchmark} ({items[f'kept/{benchmark}']:,.0f})"
        lines[0] += [title, "near"] if near is not None else [title]
    for source in sources:
        cells = [source, f"{rows[f'kept/{source}']:,.0f}"]
        for benchmark in benchmarks:
            shared, leaked = counts.get((source, benchmark), (0, 0))
            cells.append(f"{shared:,} / {leaked:,}" if shared else "–")
            if near is not None:
                missed = near.get(f"near/{source}/{benchmark}", 0)
                cells.append(f"{missed:,.0f}" if missed else "–")
        lines.append(cells)
    return lines


def _near_settings(cosine: float | None, embed: str, url: str) -> NearMissSettings | None:
    if cosine is None:
        if url or embed != HASHING:
            raise ConfigError(["--embed and --embed-url say how --near compares: add --near 0.9"])
        return None
    if url and embed == HASHING:
        raise ConfigError(["--embed-url needs --embed: the name of the endpoint's model"])
    return load_group(NearMissSettings, (), {"cosine": cosine, "model": embed, "base_url": url})


def source_of(text: str) -> Source:
    """The source that a word of the command names. Raises ConfigError."""
    entries = read_catalogue("catalogue")
    named, equals, pattern = text.partition("=")
    if not equals and text in entries:
        return Source(use=text, gold_optional=True)
    if not equals and not text.endswith(SUFFIXES):
        fix = f"{nearest(text, entries)}; or name a data file, or NAME=FILES"
        raise ConfigError([f"{text}: no such source in the catalogue{fix}"])
    name = named if equals else stem(Path(text))
    try:
        files = find_files([pattern if equals else text], Path.cwd(), name)
    except FileNotFoundError as error:
        raise ConfigError([str(error)]) from error
    fields: dict[str, Any] = {"files": [str(file) for file in files], "gold_optional": True}
    if name in entries:
        return Source(use=name, **fields)
    try:
        text_of_problem(next((row.value or {} for row in read_rows(files[0])), {}))
    except BadField as error:
        raise ConfigError([f"{files[0]}: the first row has no text: {error}"]) from error
    return Source(name=name, by_shape=True, **fields)
