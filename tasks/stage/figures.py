"""A stage in words: how far it is and how fast it goes, and its result as one figure."""

import time
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from klear.tasks.report.run_story import duration

SCORE = "/avg"
MOST_FIGURES = 2  # of a stage that has no sentence
FEWEST_SECONDS = 5.0
"""Before this long, a rate says more about the start than about the stage."""


class Pace:
    """How fast a stage goes since its first report; what it had done by then counts for nothing."""

    def __init__(self) -> None:
        self._total, self.done = 0.0, 0.0

    def said(self, done: float, total: float, note: str) -> str:
        """`420 of 2,919 (14 %), 26/s, 1 min 36 s left, loss 1.2`; the note where nothing is
        counted. A rate begins anew with another total."""
        if not total:
            return note
        now = time.monotonic()
        if total != self._total or done < self.done:
            self._total, self._began, self._first = total, now, done
        self.done = done
        words = [f"{done:,.0f} of {total:,.0f} ({100 * done / total:.0f} %)"]
        took, made = now - self._began, done - self._first
        if took >= FEWEST_SECONDS and made > 0:
            speed = f"{made / took:,.0f}/s" if made >= took else f"{60 * made / took:.1f}/min"
            words.append(f"{speed}, {duration((total - done) * took / made)} left")
        return ", ".join(filter(None, [*words, note]))


def figure_of(stage: str, metrics: Mapping[str, float]) -> str:
    """`41.2 % math · 39.4 % code`, `4,475 of 5,210 problems kept`; nothing without metrics."""
    scores = {n.removesuffix(SCORE): v for n, v in metrics.items() if n.endswith(SCORE)}
    if scores and stage != "report":
        return " · ".join(f"{100 * v:.1f} % {title_of(n)}" for n, v in scores.items())
    rows = metrics.get("kept", 0.0) + metrics.get("rejected", 0.0)
    written = {n: number(n, v) for n, v in {**metrics, "rows": rows}.items()}
    try:
        return _words()["stages"][stage].format_map(written)
    except KeyError:  # a stage of somebody's own, or a result without the metric
        return ", ".join(f"{n} {written[n]}" for n in [*metrics][:MOST_FIGURES])


def number(name: str, value: float) -> str:
    """A metric for people: `52.0 %` of a share, `10,605` of a count, `0.333` of another figure."""
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def title_of(benchmark: str) -> str:
    """A benchmark for people."""
    return _words()["benchmarks"].get(benchmark, benchmark)


@cache
def _words() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
