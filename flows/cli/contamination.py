"""`klear contamination SOURCE… --against BENCHMARK…`: how much of each benchmark is in each source.

Stages of the store, without a server: sources are collected once, and the same command goes on
after a kill. A row without an answer counts as any other: only its prompt is looked at.
"""

import sys
from collections.abc import Mapping
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


def contamination(
    *sources: str,
    against: Annotated[tuple[str, ...], Parameter(consume_multiple=True)],
    n: int = 9,
    normalize: str = "alnum",
    near: float | None = None,
    embed: str = HASHING,
    embed_url: str = "",
) -> int:
    """Count the rows of data sources that share text with benchmarks.

    Args:
        sources: Names of the catalogue, data files, or NAME=FILES: a name for files (globs), which
            have the fields of the catalogue's entry where it has one of that name.
        against: Benchmarks, named in the same ways.
        n: Words an n-gram.
        normalize: Words: alnum, runs of letters and digits; or whitespace, split at white space.
        near: Count near misses, too: rows whose embedding has this cosine with an item's, or more,
            and that are no leak by n-grams.
        embed: The encoder: hashing (built in; numbers are all one), a folder or hub id (id@commit)
            of a model whose vector is the mean of its tokens, or the endpoint's name of one.
        embed_url: An endpoint with /v1/embeddings, https://…/v1; OPENAI_API_KEY holds its key.
    """
    settings = load_group(DecontaminateSettings, (f"n={n}", f"normalize={normalize}"))
    if not sources:
        raise ConfigError(["name at least one source: a name of the catalogue, or a file"])
    to_read, to_protect = (
        CollectSettings(root="/", sources=tuple(map(source_of, names)))
        for names in (sources, against)
    )
    near_settings = _near_settings(near, embed, embed_url)
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
    from ...training.engines.interface import EngineError

    missed = None
    display = Terminal(Console(stderr=True, highlight=False, soft_wrap=True))
    try:
        store = open_store(load_machine())
        with display.bars, active(Run(store=store, observers=(Cards(store), display))):
            problems = collect(settings=to_read)
            benchmarks = collect.named("benchmarks")(settings=to_protect)
            found = decontaminate(problems, benchmarks, settings=settings)
            if near_settings:
                missed = near_misses(problems, benchmarks, found, settings=near_settings)
    except (ValueError, OSError, EngineError) as error:
        print(f"klear contamination: {error}", file=sys.stderr)
        return 1
    print(f"rows that share a {n}-gram, and of these those with half of an item or more:")
    if missed:
        print(f"near: others whose cosine with an item is {near:g} or more ({embed})")
    counts = count_by_source(found.file("hits.parquet"))
    lines = _table(problems.metrics, benchmarks.metrics, counts, missed and missed.metrics)
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    for name, *cells in lines:
        print(name.ljust(first), *map(str.rjust, cells, others), sep="  ")
    if rejected := problems.metrics["rejected"] + benchmarks.metrics["rejected"]:
        why = f"{problems.folder / 'rejected.parquet'} says why"
        print(f"rows that cannot be read: {rejected:,.0f}; {why}")
    print(f"page: {found.file(PAGE)}")
    if missed:
        print(f"near: {missed.file(NEAR_PAGE)}")
    return 0


def _table(
    rows: Mapping[str, float],
    items: Mapping[str, float],
    counts: Mapping[tuple[str, str], tuple[int, int]],
    near: Mapping[str, float] | None,
) -> list[list[str]]:
    """Sources by benchmarks, from the metrics of what collected them: `shared / leaked`, and the
    near misses where they were looked for."""
    sources, benchmarks = (
        [name.removeprefix("kept/") for name in found if name.startswith("kept/")]
        for found in (rows, items)
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
    given = {"cosine": cosine, "model": embed, "base_url": url}
    return load_group(NearMissSettings, (), given)


def source_of(text: str) -> Source:
    """The source that a word of the command names. Raises ConfigError."""
    entries = read_catalogue("catalogue")
    named, equals, pattern = text.partition("=")
    if not equals and text in entries:
        return Source(use=text, gold_optional=True)
    if not equals and not text.endswith(SUFFIXES):
        there = f"{nearest(text, entries)}; or name a data file, or NAME=FILES"
        raise ConfigError([f"{text}: no such source in the catalogue{there}"])
    name = named if equals else stem(Path(text))
    try:
        files = find_files([pattern if equals else text], Path.cwd(), name)
    except FileNotFoundError as error:
        raise ConfigError([str(error)]) from error
    given: dict[str, Any] = {"files": [str(file) for file in files], "gold_optional": True}
    if name in entries:
        return Source(use=name, **given)
    try:
        text_of_problem(next((row.value or {} for row in read_rows(files[0])), {}))
    except BadField as error:
        raise ConfigError([f"{files[0]}: the first row has no text: {error}"]) from error
    return Source(name=name, by_shape=True, **given)
