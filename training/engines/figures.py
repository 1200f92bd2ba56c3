"""What generation has cost so far, in all and by part: answers, tokens, money and speed, live.

A part is what a request is booked under: the source of its problem.
"""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from configs.engines import EngineRuntime
from eval.records import Sample
from training.engines.interface import Request
from training.progress_files import MetricsFile

SECONDS_PER_POINT = 5.0


@dataclass
class Count:
    """Answers, and when those of this process came."""

    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    new_samples: int = 0
    new_tokens: int = 0
    began: float | None = None
    latest: float = 0.0

    def keep(self, sample: Sample) -> None:
        """An answer that is on file."""
        self.samples += 1
        self.tokens += sample.completion_tokens
        self.prompt_tokens += sample.prompt_tokens

    def made(self, sample: Sample, began: float | None, now: float) -> None:
        """An answer of this process; `began`: when the work on the first one did."""
        self.new_samples += 1
        self.new_tokens += sample.completion_tokens
        self.began = began if self.began is None else self.began
        self.latest = now

    def rate(self, until: float) -> float:
        """New tokens a second."""
        seconds = until - self.began if self.began is not None else 0.0
        return self.new_tokens / max(seconds, 1e-9) if self.new_tokens else 0.0


class Figures:
    """Counts of one work folder; speed is that of this process alone."""

    def __init__(
        self,
        runtime: EngineRuntime,
        earlier: Iterable[Sample] = (),
        parts: Mapping[str, str] | None = None,
    ) -> None:
        """`earlier`: what a killed run had finished; it counts, but not as speed. `parts`:
        problem id → part."""
        self._runtime, self._parts = runtime, parts or {}
        self.whole = Count()
        self.by_part: dict[str, Count] = {part: Count() for part in self._parts.values()}
        self._now_at = ""
        for sample in earlier:
            self._count(sample)

    def start(self) -> None:
        """The engine is ready: from here on it is measured."""
        self.whole.began = self.whole.latest = time.monotonic()

    def add(self, sample: Sample, *, again: bool = False) -> None:
        """One more answer; `again`: it is on file already and was only made anew."""
        if not again:
            self._count(sample)
        now, before = time.monotonic(), self.whole.latest
        for count in self._counts_of(sample):
            count.made(sample, before, now)

    def _count(self, sample: Sample) -> None:
        for count in self._counts_of(sample):
            count.keep(sample)

    def _counts_of(self, sample: Sample) -> list[Count]:
        part = self._parts.get(sample.problem_id)
        if part is None:
            return [self.whole]
        self._now_at = part
        return [self.whole, self.by_part[part]]

    @property
    def samples(self) -> int:
        return self.whole.samples

    @property
    def tokens_per_second(self) -> float:
        if self.whole.began is None:
            return 0.0
        return self.whole.rate(time.monotonic())

    @property
    def cost(self) -> float | None:
        return self._cost(self.whole)

    def _cost(self, count: Count) -> float | None:
        return cost_of(self._runtime, count.prompt_tokens, count.tokens)

    def note(self) -> str:
        """A few words for a progress bar: the whole, then the part of the latest answer."""
        whole = self._words(self.whole, self.tokens_per_second)
        if len(self.by_part) < 2 or not self._now_at:
            return whole
        part = self.by_part[self._now_at]
        return f"{whole} | {self._now_at}: {self._words(part, part.rate(part.latest))}"

    def _words(self, count: Count, rate: float) -> str:
        cost = self._cost(count)
        money = "" if cost is None else f", cost {cost:,.2f}"
        return f"{rate:.0f} tok/s, {count.tokens:,} tokens{money}"

    def metrics(self) -> dict[str, float]:
        """By name, `generated/tokens`; by part too where there is more than one,
        `generated/tokens/PART`."""
        found = self._metrics(self.whole, self.tokens_per_second, "")
        if len(self.by_part) > 1:
            for part, count in self.by_part.items():
                found |= self._metrics(count, count.rate(count.latest), f"/{part}")
        return found

    def _metrics(self, count: Count, rate: float, of: str) -> dict[str, float]:
        found = {
            f"generated/samples{of}": float(count.samples),
            f"generated/tokens{of}": float(count.tokens),
            f"generated/tokens_per_second{of}": rate,
        }
        cost = self._cost(count)
        return found if cost is None else {**found, f"generated/cost{of}": cost}


class FiguresFile:
    """Curves over the number of samples, for MLflow: a point every few seconds and at the end."""

    def __init__(self, out: Path, figures: Figures) -> None:
        self._figures = figures
        self._file = MetricsFile(out, after_step=figures.samples)
        self._next = time.monotonic() + SECONDS_PER_POINT

    def now_and_then(self) -> None:
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """A disk that takes no more ends the run at the next answer, which says so; not here."""
        with suppress(OSError):
            self._file.append(self._figures.samples, self._figures.metrics())
        self._next = time.monotonic() + SECONDS_PER_POINT


def parts_of(out: Path, requests: Iterable[Request]) -> dict[str, str]:
    """Problem id → part, of these requests and of all that the work folder `out` has seen: early
    stop asks for fewer and fewer, and what the others have cost still counts."""
    path = out / ".resume" / "parts.json"
    known: dict[str, str] = orjson.loads(path.read_bytes()) if path.exists() else {}
    before = len(known)
    known |= {r.problem_id: r.part for r in requests}
    if len(known) > before:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(orjson.dumps(known))
        os.replace(partial, path)
    return known


def cost_of(runtime: EngineRuntime, prompt_tokens: float, tokens: float) -> float | None:
    """Money at the prices of the settings; None when there are none."""
    if runtime.input_price is None and runtime.output_price is None:
        return None
    prompt_price, price = runtime.input_price or 0.0, runtime.output_price or 0.0
    return (prompt_tokens * prompt_price + tokens * price) / 1e6
