"""What every engine promises: requests in, samples out, in any order. Importable without torch.

    with make_engine(settings, sampling) as engine:
        for sample in engine.answer(requests): ...

A sample that comes back was answered, or has finish_reason `error` where the model can never answer
it. A request that could not be answered for reasons outside the model raises EngineError, after
the samples that did finish were handed over.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
from typing import Any, Protocol, Self

from eval.records import Record, Sample

Key = tuple[str, int]
"""Problem id and index of a sample."""


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

    @property
    def key(self) -> Key:
        return self.problem_id, self.index

    def answered(self, model: str, text: str, **more: Any) -> Sample:
        return Sample(problem_id=self.problem_id, index=self.index, model=model, text=text, **more)


class Engine(Protocol):
    """Answers requests with bounded concurrency; a context manager that frees what it holds."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def answer(
        self, requests: Iterable[Request], finished: Container[Key] = ()
    ) -> Iterator[Sample]:
        """Samples in the order in which they finish; what is `finished` is not asked again, unless
        the batch it belongs to is not whole."""
        ...


def request_seed(seed: int, problem_id: str, index: int) -> int:
    """31 bits that depend on the run's seed and on this sample alone."""
    digest = hashlib.sha256(f"{seed}/{problem_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def ask_concurrently(
    runner: asyncio.Runner,
    ask: Callable[[Request], Awaitable[Sample | None]],
    requests: Iterable[Request],
    at_once: int,
) -> Iterator[Sample]:
    """What `ask` returns, without None, as it comes; the first error ends all.

    The loop of `runner` runs while the consumer waits for a sample. A request is taken when there
    is room for it: `at_once` are being asked, or their answers not yet dealt with.
    """
    loop, coming = runner.get_loop(), iter(requests)
    answers: asyncio.Queue[tuple[Sample, asyncio.Event] | None] = asyncio.Queue()

    async def ask_in_turn() -> None:
        for request in coming:
            if (sample := await ask(request)) is not None:
                dealt_with = asyncio.Event()
                answers.put_nowait((sample, dealt_with))
                await dealt_with.wait()

    async def ask_all() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(ask_in_turn())

    asking = loop.create_task(ask_all())
    asking.add_done_callback(lambda _: answers.put_nowait(None))
    try:
        while (answer := loop.run_until_complete(answers.get())) is not None:
            yield answer[0]
            answer[1].set()
        if isinstance(error := asking.exception(), BaseExceptionGroup):
            raise error.exceptions[0]
    finally:
        if not asking.done():
            asking.cancel()
            loop.run_until_complete(asyncio.wait((asking,)))
