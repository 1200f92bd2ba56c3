"""From requests to a journal of samples, by whichever engine the settings name: in this process, or
for a local model in a child (`generate_job`). Only the engine that needs them imports heavy
packages.

The journal holds finished samples, one JSON line each, and their cost. A kill loses at most the
line being written; answers that are paid for are forced to disk one by one.
"""

import os
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson

from ...configs.settings.engines import EngineSettings, Sampling
from ...eval.records import Sample
from ..launch.jobs import GenerateJob
from ..launch.result_files import SCRATCH, MetricsFile, ProgressFile
from .interface import Engine, EngineError, Key, Request

SECONDS_PER_POINT = 2.0
ENGINES = {
    "scripted": "scripted:ScriptedEngine",
    "recorded": "recorded:RecordedEngine",
    "openai": "endpoint:EndpointEngine",
    "vllm": "vllm_engine:VLLMEngine",
    "transformers": "transformers_engine:TransformersEngine",
}


def journal_path(out: Path) -> Path:
    return out / SCRATCH / "samples.jsonl"


def answered_by_path(out: Path) -> Path:
    """Lines of an endpoint: what it called itself, and when it first did."""
    return out / SCRATCH / "answered_by.jsonl"


def answer_places(out: Path) -> dict[Key, int]:
    """1, 2, … of the answers in the journal, in the order in which they came; none without one."""
    with suppress(FileNotFoundError), journal_path(out).open("rb") as lines:
        rows = map(orjson.loads, lines)
        return {(row["problem_id"], row["index"]): n for n, row in enumerate(rows, 1)}
    return {}


def forget_refused(out: Path) -> None:
    """Take the requests that were refused out of the journal: the next run asks them again."""
    path = journal_path(out)
    lines = path.read_bytes().splitlines(True)
    kept = [line for line in lines if orjson.loads(line)["finish_reason"] != "error"]
    path.write_bytes(b"".join(kept))


class Journal(AbstractContextManager["Journal"]):
    """Append-only samples by (problem_id, index); `sync_each` forces each to disk at once."""

    def __init__(self, path: Path, *, sync_each: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sync_each = sync_each
        self._offsets: dict[Key, int] = {}
        self._counts = {"tokens": 0, "prompt_tokens": 0}
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

    def append(self, sample: Sample) -> None:
        """Keep `sample`, if its key is new. Raises EngineError when the disk takes no more."""
        if (sample.problem_id, sample.index) in self._offsets:
            return
        row = sample.model_dump()
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
        self._counts["tokens"] += row["completion_tokens"]
        self._counts["prompt_tokens"] += row["prompt_tokens"]

    def samples(self, keys: Iterable[Key]) -> Iterator[Sample]:
        with open(self._file.name, "rb") as lines:
            for key in keys:
                if key in self._offsets:
                    lines.seek(self._offsets[key])
                    yield Sample.model_validate(orjson.loads(lines.readline()))

    def figures(self, engine: EngineSettings) -> dict[str, float]:
        """`samples`, `tokens` (of answers), `prompt_tokens` and, where there are prices, `cost`."""
        cost = cost_of(engine, self._counts["prompt_tokens"], self._counts["tokens"])
        counts: dict[str, float] = {"samples": len(self), **self._counts}
        return counts if cost is None else counts | {"cost": cost}

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def cost_of(engine: EngineSettings, prompt_tokens: float, tokens: float) -> float | None:
    """Money at the prices of the settings, else of the catalogue; None when there are none."""
    prices = engine.prices
    return prices and (prompt_tokens * prices.input + tokens * prices.output) / 1e6


class SpentApproved(Exception):
    """Answers have cost what was approved; asking stopped, and everything paid for is kept."""

    def __init__(self, cost: float, done: int) -> None:
        super().__init__(f"{done:,} answers have cost {cost:,.2f} and more are to come")
        self.cost = cost


def is_local(settings: EngineSettings) -> bool:
    """Whether the engine computes itself, and therefore belongs into a child process."""
    return settings.kind in ("vllm", "transformers")


def make_engine(settings: EngineSettings, sampling: Sampling, key: str | None = None) -> Engine:
    """The engine of `settings`; raises EngineError with the cure when it cannot start. `key` is
    that of an endpoint; None: from the environment variable that the settings name."""
    engine = pkgutil.resolve_name(f"klear.training.engines.{ENGINES[settings.kind]}")
    return engine(settings, sampling, *((key,) if settings.kind == "openai" else ()))


def generate(
    out: Path, requests: Sequence[Request], settings: EngineSettings, sampling: Sampling,
    report: Callable[[int, int, str], None], *, key: str | None = None, limit: float | None = None,
) -> dict[str, float]:  # fmt: skip
    """Answer what the journal in `out` lacks; returns the `tokens_per_second` of this run and what
    its engine measured, nothing where nothing was lacking.

    Answers, tokens, cost and speed go to `report`, cost and speed every few seconds to
    `out/logs/metrics.jsonl`. Raises EngineError when some could not be answered. Once answers have
    cost `limit` those on their way are kept, and SpentApproved is raised if any is left.
    """
    with Journal(journal_path(out), sync_each=settings.kind == "openai") as journal:
        # the journal may hold answers beyond these requests: those of earlier rounds
        done, total = sum(r.key in journal for r in requests), len(requests)
        if done == total:
            return {}
        curves, waiting = MetricsFile(out, after_step=len(journal)), list[Sample]()
        report(done, total, "starting the engine")
        before, rate = journal.figures(settings)["tokens"], 0.0

        def spent() -> bool:
            return limit is not None and journal.figures(settings).get("cost", 0.0) >= limit

        def keep_all() -> None:
            while waiting:
                journal.append(waiting.pop())

        with make_engine(settings, sampling, key) as engine:
            engine.tell = lambda note: report(done, total, note)
            engine.seen_in = answered_by_path(out)
            began = reported = time.monotonic()
            for sample in engine.answer(takewhile(lambda _: not spent(), requests), journal):
                if (sample.problem_id, sample.index) in journal:
                    continue  # of a batch that was redone
                done += 1
                waiting.append(sample)
                if sample.finish_reason != "error":  # it answers, so those before are wrong
                    keep_all()
                totals, now = journal.figures(settings), time.monotonic()
                rate = (totals["tokens"] - before) / max(now - began, 1e-9)
                money = f", cost {totals['cost']:,.2f}" if "cost" in totals else ""
                with suppress(OSError):  # a full disk ends the run at the next answer
                    report(done, total, f"{rate:.0f} tok/s, {totals['tokens']:,.0f} tokens{money}")
                    if now - reported > SECONDS_PER_POINT or done == total:
                        reported, point = now, {"generated/tokens_per_second": rate}
                        spending = {"generated/cost": totals["cost"]} if "cost" in totals else {}
                        curves.append(len(journal), point | spending)
        if waiting and not len(journal):
            if not is_local(settings):
                refused = f"each of {len(waiting):,} requests was refused, so there is no answer"
                raise EngineError(f"{settings.base_url}: {refused}: {waiting[-1].text}")
            shortest = min(s.prompt_tokens for s in waiting)
            full = f"{len(waiting):,} prompts has {shortest:,} tokens and fills its context"
            raise EngineError(f"{settings.model} has no room for an answer: the shortest of {full}")
        keep_all()
        if spent() and any(r.key not in journal for r in requests):
            raise SpentApproved(journal.figures(settings)["cost"], len(journal))
        return {"tokens_per_second": rate, **engine.measured}


def generate_job(job: GenerateJob) -> dict[str, float]:
    """Answer the requests of a child's job, JSON lines of `Request`; a second run of it goes on."""
    with job.requests.open("rb") as lines:
        requests = [Request(**orjson.loads(line)) for line in lines]
    return generate(job.out, requests, job.engine, job.sampling, ProgressFile(job.out).report)
