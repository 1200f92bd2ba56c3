"""What generation has cost so far: answers, tokens, money and speed, live.

Answers, tokens and money are also counted by part: the source of a problem.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import orjson

from configs.settings.engines import EngineRuntime
from eval.records import Sample
from training.engines.interface import Request
from training.layout import MetricsFile

SECONDS_PER_POINT = 5.0
WHOLE = ""


class GenerationStats:
    """Counts of one work folder, and their curves over the number of samples in
    `out/logs/metrics.jsonl`: a point every few seconds and one at the end."""

    def __init__(
        self,
        out: Path,
        runtime: EngineRuntime,
        earlier: Iterable[Sample],
        requests: Iterable[Request],
    ) -> None:
        """`earlier`: what a killed run had finished; it counts, but not as speed."""
        self._runtime, self._part_of = runtime, _parts(out, requests)
        self._samples: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._prompt_tokens: Counter[str] = Counter()
        self._new_tokens = 0
        for sample in earlier:
            self._count(sample)
        self._file = MetricsFile(out, after_step=self.samples)
        self.start()

    def start(self) -> None:
        """The engine is ready: from here on it is measured."""
        self._began = self._latest = self._written = time.monotonic()

    def add(self, sample: Sample) -> None:
        """One more answer."""
        self._count(sample)
        self._new_tokens += sample.completion_tokens
        self._latest = time.monotonic()
        if self._latest - self._written > SECONDS_PER_POINT:
            self.write()

    def _count(self, sample: Sample) -> None:
        for part in {WHOLE, self._part_of.get(sample.problem_id, WHOLE)}:
            self._samples[part] += 1
            self._tokens[part] += sample.completion_tokens
            self._prompt_tokens[part] += sample.prompt_tokens

    def write(self) -> None:
        """A disk that takes no more ends the run at the next answer, which says so; not here."""
        with suppress(OSError):
            self._file.append(self.samples, self.metrics())
        self._written = time.monotonic()

    @property
    def samples(self) -> int:
        return self._samples[WHOLE]

    @property
    def tokens_per_second(self) -> float:
        """Of this process."""
        return self._new_tokens / max(self._latest - self._began, 1e-9)

    def cost(self, part: str = WHOLE) -> float | None:
        return cost_of(self._runtime, self._prompt_tokens[part], self._tokens[part])

    def metrics(self) -> dict[str, float]:
        """By name, `generated/tokens`; of a part, where there are several,
        `generated/tokens/PART`."""
        found = {"generated/tokens_per_second": self.tokens_per_second}
        parts = sorted(set(self._part_of.values()))
        for part in [WHOLE, *(parts if len(parts) > 1 else [])]:
            name = f"/{part}" if part else ""
            found[f"generated/samples{name}"] = self._samples[part]
            found[f"generated/tokens{name}"] = self._tokens[part]
            if (cost := self.cost(part)) is not None:
                found[f"generated/cost{name}"] = cost
        return found

    def note(self) -> str:
        """A few words for a progress bar."""
        cost = self.cost()
        money = "" if cost is None else f", cost {cost:,.2f}"
        return f"{self.tokens_per_second:.0f} tok/s, {self._tokens[WHOLE]:,} tokens{money}"


def _parts(out: Path, requests: Iterable[Request]) -> dict[str, str]:
    """Problem id → part, of these requests and of all that the work folder `out` has seen: early
    stop asks for fewer and fewer, and what the others have cost still counts."""
    path = out / ".resume" / "parts.json"
    known: dict[str, str] = orjson.loads(path.read_bytes()) if path.exists() else {}
    known |= {r.problem_id: r.part for r in requests}
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
