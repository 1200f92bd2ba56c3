"""Finished samples on disk, one JSON line each, and what they have cost so far.

A kill loses at most the line being written: lines are handed to the kernel one by one, and forced
to disk one by one where each answer is paid for (a power cut loses none).
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import orjson

from configs.settings.engines import EngineRuntime
from eval.records import Sample
from training.engines.interface import EngineError, Key
from training.layout import SCRATCH


def journal_path(out: Path) -> Path:
    return out / SCRATCH / "samples.jsonl"


class Journal:
    """Append-only samples keyed by (problem_id, index). Use as a context manager.

    `sync_each` forces every sample to disk before `append` returns.
    """

    def __init__(self, path: Path, *, sync_each: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sync_each = sync_each
        self._offsets: dict[Key, int] = {}
        self._tokens: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._file = path.open("a+b", buffering=0)
        self._end = 0
        with path.open("rb") as lines:
            for line in lines:
                try:
                    row = orjson.loads(line if line.endswith(b"\n") else b"")
                except orjson.JSONDecodeError:  # what a kill or a power cut left torn
                    break
                self._count(row, len(line))
        self._file.truncate(self._end)

    def __contains__(self, key: object) -> bool:
        return key in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, sample: Sample, part: str = "") -> None:
        """Keep `sample`, booked under `part`; a key that is already there is left alone.

        Raises EngineError when the disk takes no more: what was appended before is kept.
        """
        if (sample.problem_id, sample.index) in self._offsets:
            return
        row = sample.model_dump() | {"part": part}
        line = orjson.dumps(row) + b"\n"
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            if self._sync_each:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._end)
            raise EngineError(
                f"{self._file.name}: {error.strerror}, so no answer can be kept: make room and run "
                f"again; the {len(self):,} answers on file are kept"
            ) from error
        self._count(row, len(line))

    def _count(self, row: dict[str, Any], size: int) -> None:
        self._offsets[row["problem_id"], row["index"]] = self._end
        self._end += size
        counts = self._tokens[row.get("part", "")]
        counts["samples"] += 1
        counts["tokens"] += row["completion_tokens"]
        counts["prompt_tokens"] += row["prompt_tokens"]

    def samples(self, keys: Iterable[Key]) -> Iterator[Sample]:
        """The samples of those `keys` that are there, in the order of `keys`."""
        with open(self._file.name, "rb") as lines:
            for key in keys:
                if key in self._offsets:
                    lines.seek(self._offsets[key])
                    row = orjson.loads(lines.readline())
                    row.pop("part", None)
                    yield Sample.model_validate(row)

    def figures(self, runtime: EngineRuntime) -> dict[str, float]:
        """`samples`, `tokens` (of answers), `prompt_tokens` and, at the prices of `runtime`,
        `cost`; all of them for each part too, as `tokens/PART`."""
        found: dict[str, float] = {}
        books = {"": sum(self._tokens.values(), Counter[str]())}
        books |= {f"/{part}": counts for part, counts in sorted(self._tokens.items()) if part}
        for end, counts in books.items():
            for name in ("samples", "tokens", "prompt_tokens"):
                found[name + end] = float(counts[name])
            cost = cost_of(runtime, counts["prompt_tokens"], counts["tokens"])
            if cost is not None:
                found["cost" + end] = cost
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def cost_of(runtime: EngineRuntime, prompt_tokens: float, tokens: float) -> float | None:
    """Money at the prices of the settings; None when there are none."""
    if runtime.input_price is None and runtime.output_price is None:
        return None
    prompt_price, price = runtime.input_price or 0.0, runtime.output_price or 0.0
    return (prompt_tokens * prompt_price + tokens * price) / 1e6
