"""What a plan learns from the sources before anybody collects them: how many problems they hold,
how long these and their published answers are, and how many golds nobody can match.

Local files are read as `collect` reads them, about a second of each source; what does not fit into
that is estimated from its first part. Of the hub only what the catalogue has counted is known.
"""

import gzip
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from math import inf, nan
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from ...configs.settings.base import read_catalogue
from ...configs.settings.engines import EngineSettings
from ...configs.settings.explain import ConfigError
from ...configs.settings.sources import Source
from ...eval.records.row_files import Row, find_files, first_rows, read_rows
from ...eval.records.tables import column, count_rows
from ...training.engines.recorded import Recording, recordings
from ..data.sources import GOLDS, Collected, checked, is_wanted, kind_of_gold

MOST_READ = 16 << 20
"""Bytes of the files of a source that are read whole, unpacked text about a second."""
FIRST_PART = 2 << 20
PACKED = 8
"""Times that packed text is longer than its file, about."""
SAMPLE = 400
"""Rows of a source, evenly spread, that are made into problems."""
CHAT_TOKENS = 12
"""That a chat template puts around prompt and answer."""
_TOKEN = re.compile(r"[^\W\d_]+|\d|[^\w\s]+|_|\n+| {2,}")


class SourceFacts(NamedTuple):
    """Of one source; NaN is what is not known."""

    problems: float = nan
    prompt_tokens: float = nan
    answers: float = 0.0
    """Published, a problem"""
    answer_tokens: float = nan
    golds: Mapping[str, float] = MappingProxyType({})
    """Of each kind of `GOLDS`: how many"""
    estimated: bool = False


def count_tokens(text: str) -> int:
    """Without a tokenizer: words, digits, runs of other signs and of line breaks. Of 15 fields of
    GSM8K, MATH, AIME, MBPP, LeetCode and long thoughts it is within 14% of the counts of Qwen3,
    SmolLM2 and DeepSeek-V3."""
    return sum(1 for _ in _TOKEN.finditer(text))


def facts_of_source(source: Source, root: Path) -> SourceFacts:
    """Of a source as `collect` would read it."""
    if source.kind == "generated":
        return SourceFacts(float(source.size))
    files: Sequence[Path] = ()
    with suppress(ConfigError, OSError):  # whoever collects says it
        if source.kind == "files":
            files = find_files(source.files, root, source.name)
        elif Path(source.dataset).is_dir():
            files = find_files(source.data_files, Path(source.dataset), source.name)
    stamps = tuple((file, file.stat().st_mtime_ns) for file in files)
    found = (
        _facts_of_files(source.model_dump_json(by_alias=True), stamps)
        if files
        else _of_catalogue(source)
    )
    if source.limit and not found.problems <= source.limit:  # also where it is NaN
        share = source.limit / found.problems
        golds = {name: count * share for name, count in found.golds.items()}
        known = source.kind == "hub" or bool(files)
        return found._replace(problems=float(source.limit) if known else nan, golds=golds)
    return found


def _of_catalogue(source: Source) -> SourceFacts:
    """Rows that somebody has counted, of just what the entry reads and before any filter."""
    counts: dict[str, dict[str, int]] = read_catalogue("problems")
    if not source.use or source.kind != "hub":
        return SourceFacts()
    entry = Source(use=source.use)
    same = ("dataset", "config", "split", "data_files", "where")
    if any(getattr(source, name) != getattr(entry, name) for name in same):
        return SourceFacts()
    rows = nan if source.where else counts["rows"].get(source.use, nan)
    return SourceFacts(float(counts["problems"].get(source.use, rows)))


@lru_cache(maxsize=64)
def _facts_of_files(settings: str, files: tuple[tuple[Path, int], ...]) -> SourceFacts:
    source = Source.model_validate_json(settings)
    count, estimated, left = 0.0, False, float(MOST_READ)
    wanted: list[Row] = []
    read_bytes, read_count = 0, 0.0
    for file, _ in files:
        size = file.stat().st_size
        unpacked = size * (PACKED if file.suffix in (".gz", ".zst", ".parquet") else 1)
        try:
            if unpacked <= left:
                rows = _wanted(read_rows(file), source)
                number = float(len(rows))
            elif left <= 0 and read_count and len(files) > 1:
                rows, number, estimated = [], size * read_count / read_bytes, True
            else:
                rows, number, exact = _first_part(file, source)
                estimated |= not exact
        except (ValueError, OSError):  # damaged: whoever collects says it
            return SourceFacts()
        left -= unpacked
        count, wanted = count + number, wanted + rows
        read_bytes, read_count = read_bytes + size, read_count + number
    if source.lookup or not wanted:
        return SourceFacts(count, estimated=estimated)
    sample = wanted[:: -(-len(wanted) // SAMPLE)]
    good = [c for row in sample if isinstance(c := checked(row, source), Collected)]
    count *= len(good) / len(sample)
    traces = [t for c in good for t in c.traces]
    kinds = [name for c in good for name in kind_of_gold(c.problem)]
    estimated |= len(sample) < len(wanted) and (len(good) < len(sample) or bool(kinds))
    return SourceFacts(
        float(round(count)),
        _mean_tokens([c.problem.prompt for c in good]) + CHAT_TOKENS,
        len(traces) / len(good) if good else 0.0,
        _mean_tokens([t.text for t in traces]),
        {name: count * kinds.count(name) / max(1, len(good)) for name in GOLDS},
        estimated,
    )


def _wanted(rows: Any, source: Source) -> list[Row]:
    return [row for row in rows if row.value is None or is_wanted(row.value, source.where)]


def _first_part(file: Path, source: Source) -> tuple[list[Row], float, bool]:
    """The wanted rows of a file's first part, how many it has in all, and whether that is exact."""
    rows, texts, size = list[Row](), list[bytes](), 0
    is_table = bool({".csv", ".tsv"} & {*file.suffixes[-2:]})
    for row in first_rows(file, FIRST_PART):
        value = row.value or {}
        text = ",".join(map(str, value.values())) if is_table else row.raw
        texts.append(text.encode() if text else orjson.dumps(value, str))
        rows.append(row)
        size += len(texts[-1])
        if size > FIRST_PART:
            break
    kept = _wanted(rows, source)
    if not rows:
        return [], nan, False
    if file.suffix == ".parquet":
        return kept, count_rows(file) * len(kept) / len(rows), not source.where
    text = b"".join(texts) if rows[0].raw else b"\n".join(texts)
    if file.suffix == ".gz":
        text = gzip.compress(text, 6)
    elif file.suffix == ".zst":
        text = pa.compress(text, "zstd", asbytes=True)
    return kept, file.stat().st_size / len(text) * len(kept), False


def _mean_tokens(texts: Sequence[str]) -> float:
    return fmean(map(count_tokens, texts)) if texts else nan


@lru_cache(maxsize=16)
def recorded_answers(engine: str) -> tuple[float, float]:
    """How many answers an engine's files hold (infinite: more than were read), and their mean
    tokens; `engine`: its settings as JSON."""
    settings, most = EngineSettings.model_validate_json(engine), 5 * SAMPLE
    with suppress(ConfigError, OSError, ValueError):
        read = list(islice(recordings(settings), most))
        texts = [r.sample.text for r in read if isinstance(r, Recording)]
        tokens = _mean_tokens(texts[:: -(-len(texts) // SAMPLE) or 1])
        return float(len(texts)) if len(read) < most else inf, tokens
    return inf, nan


def stored_tokens(file: Path, name: str) -> float:
    """Mean tokens of the texts of a column in the store, of its first rows; NaN without it."""
    with suppress(OSError, ValueError):
        texts = list(islice(column(file, name), 0, 5 * SAMPLE, 5))
        return _mean_tokens(texts) + (CHAT_TOKENS if name == "prompt" else 0)
    return nan


def rows_in(file: Path) -> float:
    return float(count_rows(file)) if file.is_file() else nan
