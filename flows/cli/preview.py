"""`klear preview FILE|NAME --n 3`: rows as the judge sees them, before anybody is asked."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ...configs.settings.base import read_catalogue
from ...configs.settings.explain import ConfigError, nearest
from ...configs.settings.sources import Source
from ...eval.answers import writable
from ...eval.records.row_files import SUFFIXES, Row, read_rows
from ...eval.rows.reading import numbered, read_problems, read_row, source_of
from ...eval.rows.shape import recognised, used_fields

LONGEST = 1_500
"""Characters of a prompt or test that are shown."""


def preview(what: str, /, *, n: int = 3, fields: str = "", use: str = "") -> int:
    """Show how problems are read: prompt, gold, tests, and the fields that are not used.

    Args:
        what: Data file, or a name of the catalogue.
        n: Rows to show.
        fields: Fields of the file: prompt=Question,gold="Correct Answer".
        use: Catalogue entry whose fields the file has.
    """
    if what.endswith(SUFFIXES):
        path = Path(what)
        if not path.is_file():
            raise ConfigError([f"{what}: no such file"])
        source = source_of(path.name, path, fields, use)
        print("\n".join(read_problems(path, source).lines()))
        rows, source = read_rows(path), numbered(read_rows(path), source)
    else:
        source, rows = _published(what, n)
    for row in islice(rows, n):
        print(f"\nrow {row.number}\n{_shown(row, source)}")
    return 0


def _published(name: str, n: int) -> tuple[Source, Iterator[Row]]:
    """A source of the catalogue, and its first rows."""
    from ...tasks.data.sources import Piece, piece_rows, resolved

    entries = read_catalogue("catalogue")
    if name not in entries:
        near = nearest(name, entries)
        raise ConfigError([f"{name}: neither a data file nor a name of the catalogue{near}"])
    source = Source(use=name)
    try:
        piece = Piece(commit=resolved(source, name))
        rows = list(islice(piece_rows(piece, source, Path(), name), n))
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    return source, iter(rows)


def _shown(row: Row, source: Source) -> str:
    if row.value is None:
        return f"  rejected: {row.error}"
    try:
        problem, way = read_row(row.value, source)
        named = recognised(row.value, source)[0] if way and source.by_shape else source
    except (ValueError, RecursionError) as error:
        return f"  rejected: {writable(str(error))}"
    unused = ", ".join(name for name in row.value if name not in used_fields(named))
    gold = f"gold      {problem.answer or 'none: answers to it are not scored'}"
    if suite := problem.tests:
        calls = f" of {suite.fn_name}" if suite.fn_name else ""
        first = suite.cases[0].model_dump_json() if suite.cases else "none"
        gold = f"tests     {len(suite.cases)} {suite.kind}{calls}; the first: {_cut(first)}"
    return (
        f"  domain    {problem.domain}\n  prompt    {_cut(problem.prompt)}\n  {gold}\n"
        f"  not used  {unused or 'nothing'}"
    )


def _cut(text: str) -> str:
    text = writable(text)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return text.replace("\n", "\n            ")
