"""Rows of a Hugging Face dataset at one commit, streamed by `datasets`.

The commit is learnt before the first row is read and the rows are those of that commit, whatever
happens to its branch in the meantime.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.settings.sources import DATA_FORMATS, Table
from eval.row_files import Row

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REASONS = {  # by the hub's own kinds of error, the narrower before the wider
    "GatedRepoError": "access to it is restricted: accept its terms on the hub and set HF_TOKEN",
    "RepositoryNotFoundError": "the hub has none of this name, or it is private: set HF_TOKEN",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "the hub cannot be reached and the cache lacks it",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and the cache lacks it",
}


def resolved(table: Table, name: str) -> str:
    """The commit that `table.revision` stands for now; empty for a local clone.

    Raises ValueError that names the source when the hub cannot be asked.
    """
    if Path(table.dataset).is_dir():
        return ""
    if _COMMIT.fullmatch(table.revision):
        return table.revision
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(table.dataset, revision=table.revision).sha or ""
    except Exception as error:  # the hub raises its own kinds: not found, gated, no network
        raise _unloadable(table, name, error) from error


def shards(table: Table, commit: str, name: str) -> int:
    """Into how many pieces the rows can be cut: usually the number of data files."""
    return max(_opened(table, commit, name).num_shards, 1)


def hub_rows(table: Table, commit: str, name: str, shard: int, of: int) -> Iterator[Row]:
    """The rows of one of `of` pieces, in order. Raises ValueError that names dataset and row."""
    rows = _opened(table, commit, name)
    if of > 1:
        rows = rows.shard(num_shards=of, index=shard, contiguous=True)
    place = table.dataset if of == 1 else f"{table.dataset} piece {shard + 1} of {of}"
    number = 0
    try:
        for number, value in enumerate(rows, 1):
            yield Row(place, number, dict(value))
    except Exception as error:  # a file that is no JSON, a schema that changes, a lost connection
        raise ValueError(
            f"source {name!r}: {place} cannot be read after row {number}: {why_not(error)}"
        ) from error


def arguments(table: Table, commit: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Positional and keyword arguments of `datasets.load_dataset` for the table."""
    local = Path(table.dataset).is_dir()
    if table.data_files:
        base = table.dataset if local else f"hf://datasets/{table.dataset}@{commit}"
        files = [f"{base}/{name}" for name in table.data_files]
        builder = DATA_FORMATS[table.data_files[0].removesuffix(".gz").rpartition(".")[2]]
        return (builder,), {"data_files": {table.split: files}, "split": table.split}
    path = (table.dataset, table.config) if table.config else (table.dataset,)
    return path, {"split": table.split, **({} if local else {"revision": commit})}


def _opened(table: Table, commit: str, name: str) -> Any:
    import datasets  # takes a second, and most runs read files

    positional, named = arguments(table, commit)
    try:
        return datasets.load_dataset(*positional, **named, streaming=True)
    except Exception as error:
        raise _unloadable(table, name, error) from error


def _unloadable(table: Table, name: str, error: Exception) -> ValueError:
    return ValueError(
        f"source {name!r}: cannot load dataset={table.dataset} revision={table.revision} "
        f"split={table.split}: {why_not(error)}. Without a network, name local copies of its "
        f"data files in `files`"
    )


def why_not(error: BaseException) -> str:
    """Why the hub did not give a dataset or a model, in a few words."""
    lines = str(error).strip().splitlines()
    first_line = lines[0].rstrip(".") if lines else type(error).__name__
    for kind in type(error).__mro__:
        if kind.__name__ in _REASONS:
            return _REASONS[kind.__name__]
        if kind.__name__ in ("TransportError", "ConnectionError", "TimeoutError"):
            return f"the hub cannot be reached ({first_line})"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the hub refuses the key in HF_TOKEN (HTTP {status})"
    return f"the hub answers HTTP {status}" if status else first_line
