"""What every engine promises: requests in, samples out, in any order. Importable without torch.

    with make_engine(settings, sampling) as engine:
        for sample in engine.answer(requests): ...

A sample was answered, or has finish_reason `error` where the model can never answer it. What could
not be answered for other reasons raises EngineError, after the finished samples.
"""

import asyncio
import hashlib
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...configs.settings.engines import EngineSettings, Sampling
from ...eval.records import FinishReason, Sample

Key = tuple[str, int]  # problem id and index of a sample
TICK_S = 1.0  # between looks at how many may be asked, where no answer comes


class EngineError(RuntimeError):
    """An engine cannot go on; the message says what to change. Finished samples are kept."""


def require_vllm() -> None:
    """Raises EngineError where it is not installed: without a GPU the demo does not need it."""
    if find_spec("vllm") is None:
        raise EngineError(
            "this engine needs vLLM, which is not installed: run `make test-env`, with a GPU `make "
            "gpu-env` (or pip install vllm), or take engine=transformers"
        )


class Request(NamedTuple):
    """Ask for sample `index` of one problem; `seed` repeats the draw. Memory holds millions."""

    problem_id: str
    index: int
    prompt: str
    seed: int = 0
    part: str = ""  # the source of its problem

    @property
    def key(self) -> Key:
        return self.problem_id, self.index

    def answered(
        self, model: str, text: str, finish_reason: FinishReason = "stop", prompt_tokens: int = 0,
        completion_tokens: int = 0,
    ) -> Sample:  # fmt: skip
        return Sample(
            problem_id=self.problem_id, index=self.index, model=model, text=text,
            finish_reason=finish_reason, prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        )  # fmt: skip


class Engine(AbstractContextManager["Engine"]):
    """Answers requests with bounded concurrency; leaving it frees what it holds."""

    measured: Mapping[str, float] = {}
    """Of the last requests: metrics of the result, which plans of later runs go by."""
    tell: Callable[[str], None] = staticmethod(lambda note: None)
    """Called with what an engine waits for that has long nothing to hand over."""
    seen_in: Path | None = None  # File in which an endpoint's engine notes who answered, and when.

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        self.settings, self.sampling = settings, sampling

    def __exit__(self, *_: object) -> None:
        """Most hold nothing."""

    def answer(self, requests: Iterable[Request], done: Container[Key] = ()) -> Iterator[Sample]:
        """Samples as they finish; those `done` are not asked again, but in a broken batch."""
        return self.answer_all(r for r in requests if r.key not in done)

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """A sample of each request, as `answer`."""
        raise NotImplementedError


def request_seed(seed: int, problem_id: str, index: int) -> int:
    """31 bits that depend on the run's seed and on this sample alone."""
    digest = hashlib.sha256(f"{seed}/{problem_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def ask_concurrently(
    runner: asyncio.Runner, ask: Callable[[Request], Coroutine[Any, Any, Sample | None]],
    requests: Iterable[Request], at_once: Callable[[int], int],
) -> Iterator[Sample]:  # fmt: skip
    """What `ask` returns, without None, as it comes; the first error ends all. The loop of `runner`
    runs while the consumer waits. `at_once` says, of how many are asked or not yet dealt with, how
    many may be."""
    loop, coming = runner.get_loop(), iter(requests)
    asking: set[asyncio.Task[Sample | None]] = set()
    ended: asyncio.Queue[asyncio.Task[Sample | None] | None] = asyncio.Queue()  # None: a tick

    def take() -> None:
        room = at_once(len(asking)) - len(asking)
        for request in islice(coming, max(0, room)):
            task = loop.create_task(ask(request))
            task.add_done_callback(ended.put_nowait)
            asking.add(task)

    try:
        ended.put_nowait(None)
        take()
        while asking:
            task = loop.run_until_complete(ended.get())
            if task is None:
                loop.call_later(TICK_S, ended.put_nowait, None)
            else:
                asking.remove(task)
                if (sample := task.result()) is not None:
                    yield sample
            take()
    finally:
        for task in asking:
            task.cancel()
        if asking:
            loop.run_until_complete(asyncio.gather(*asking, return_exceptions=True))
