"""What every engine promises: requests in, samples out, in any order. Importable without torch.

    with make_engine(settings, sampling) as engine:
        for sample in engine.answer(requests): ...

A sample that comes back was answered. A request that could not be answered for reasons outside
the model raises EngineError, after the samples that did finish were handed over.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol, Self

from eval.records import Record, Sample


class EngineError(RuntimeError):
    """An engine cannot go on; the message says what to change. Finished samples are kept."""


class Request(Record):
    """Ask for sample `index` of one problem; `seed` makes the draw repeatable."""

    problem_id: str
    index: int
    prompt: str
    seed: int = 0
    part: str = ""
    """What its tokens and cost are booked under: the source of its problem."""


class Engine(Protocol):
    """Answers requests with bounded concurrency; a context manager that frees what it holds."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples in the order in which they finish, not that of the requests."""
        ...


class LocalEngine(Engine, Protocol):
    """An engine in our own process: it says how its work is cut into batches."""

    whole_batches: bool
    """Whether a sample depends on its batch, so that a resumed run must redo the batch whole."""

    def batches(self, requests: list[Request]) -> Iterator[list[Request]]: ...


def request_seed(seed: int, problem_id: str, index: int) -> int:
    """31 bits that depend on the run's seed and on this sample alone."""
    digest = hashlib.sha256(f"{seed}/{problem_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
