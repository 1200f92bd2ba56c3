"""Finished samples on disk, one JSON line each: a kill loses at most the line being written.

Lines are handed to the kernel one by one (a killed process loses none) and forced to disk once a
second, or one by one where each answer is paid for (a power cut loses none).
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import orjson

from eval.records import Sample
from training.engines.interface import EngineError, Key

SECONDS_PER_SYNC = 1.0


def journal_path(out: Path) -> Path:
    return out / ".resume" / "samples.jsonl"


class Journal:
    """Append-only samples keyed by (problem_id, index). Use as a context manager.

    `sync_each` forces every sample to disk before `append` returns.
    """

    def __init__(self, path: Path, *, sync_each: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._seconds_per_sync = 0.0 if sync_each else SECONDS_PER_SYNC
        self._offsets: dict[Key, int] = {}
        self._out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._in = path.open("rb")
        self._end = 0
        for line in self._in:
            try:
                row = orjson.loads(line if line.endswith(b"\n") else b"")
            except orjson.JSONDecodeError:  # what a kill or a power cut left torn
                break
            self._offsets[row["problem_id"], row["index"]] = self._end
            self._end += len(line)
        os.ftruncate(self._out, self._end)
        self._synced = time.monotonic()

    def __contains__(self, key: object) -> bool:
        return key in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, sample: Sample) -> None:
        """Keep `sample`; a key that is already there is left alone.

        Raises EngineError when the disk takes no more: what was appended before is kept.
        """
        key = (sample.problem_id, sample.index)
        if key in self._offsets:
            return
        line = orjson.dumps(sample.model_dump()) + b"\n"
        try:
            self._write(line)
        except OSError as error:
            os.ftruncate(self._out, self._end)
            raise EngineError(
                f"{self._path}: {error.strerror}, so no answer can be kept: make room and run "
                f"again; the {len(self):,} answers on file are kept"
            ) from error
        self._offsets[key] = self._end
        self._end += len(line)

    def _write(self, line: bytes) -> None:
        written = 0
        while written < len(line):
            written += os.write(self._out, line[written:])
        if time.monotonic() - self._synced > self._seconds_per_sync:
            os.fsync(self._out)
            self._synced = time.monotonic()

    def samples(self, keys: Iterable[Key]) -> Iterator[Sample]:
        """The samples of those `keys` that are there, in the order of `keys`."""
        for key in keys:
            if key in self._offsets:
                self._in.seek(self._offsets[key])
                yield Sample.model_validate(orjson.loads(self._in.readline()))

    def everything(self) -> Iterator[Sample]:
        """All samples, in the order in which they came."""
        return self.samples(list(self._offsets))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._out)
        os.close(self._out)
        self._in.close()
