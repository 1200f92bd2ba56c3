"""Finished samples on disk, one JSON line each: a kill loses at most the line being written.

Lines are handed to the kernel one by one (a killed process loses none) and forced to disk once a
second (a power cut loses that second).
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import orjson

from eval.records import Sample

SECONDS_PER_SYNC = 1.0
Key = tuple[str, int]


class Journal:
    """Append-only samples keyed by (problem_id, index). Use as a context manager."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._offsets: dict[Key, int] = {}
        self._file = path.open("a+b")
        self._end = self._recover()
        self._synced = time.monotonic()

    def _recover(self) -> int:
        """Index the whole lines and cut off what a kill or a power cut left torn."""
        end = 0
        self._file.seek(0)
        for line in self._file:
            try:
                row = orjson.loads(line if line.endswith(b"\n") else b"")
            except orjson.JSONDecodeError:
                break
            self._offsets[row["problem_id"], row["index"]] = end
            end += len(line)
        self._file.truncate(end)
        return end

    def __contains__(self, key: Key) -> bool:
        return key in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, sample: Sample) -> None:
        """Keep `sample`; a key that is already there is left alone."""
        key = (sample.problem_id, sample.index)
        if key in self._offsets:
            return
        line = orjson.dumps(sample.model_dump()) + b"\n"
        self._file.write(line)
        self._file.flush()
        self._offsets[key] = self._end
        self._end += len(line)
        if time.monotonic() - self._synced > SECONDS_PER_SYNC:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def samples(self, keys: Iterable[Key]) -> Iterator[Sample]:
        """The samples of those `keys` that are there, in the order of `keys`."""
        for key in keys:
            if key in self._offsets:
                self._file.seek(self._offsets[key])
                yield Sample.model_validate(orjson.loads(self._file.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
