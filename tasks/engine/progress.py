"""How far a run is: what its stages report, how that and a result are said, and who shows it.

A stage calls `report(done, total, note)` as often as it likes; listeners decide how often to look.
"""

import logging
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from ...eval.ray_cluster import on_cluster_wait
from ..report.run_story import duration

SECONDS_BETWEEN_LINES = 30.0
SCORE = "/avg"
MOST_FIGURES = 2  # of a stage that has no sentence
FEWEST_SECONDS = 5.0
"""Before this long, a rate says more about the start than about the stage."""
WORDS = tomllib.loads(Path(__file__).with_name("figures.toml").read_text())
Listener = Callable[[float, float, str], None]
_listener: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)


def report(done: float, total: float, note: str = "") -> None:
    """Tell the listener of this stage, if there is one, that `done` of `total` is finished."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total, note)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send what is reported inside the block to `listener`."""
    token = _listener.set(listener)
    waiting = on_cluster_wait.set(lambda note: listener(0, 0, note))
    try:
        yield
    finally:
        _listener.reset(token)
        on_cluster_wait.reset(waiting)


class Pace:
    """How fast a stage goes since its first report; what it had done by then counts for nothing."""

    def __init__(self) -> None:
        self._total, self.done = 0.0, 0.0
        self.due = time.monotonic() + SECONDS_BETWEEN_LINES  # for the next line about it

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
        return WORDS["stages"][stage].format_map(written)
    except KeyError:  # a stage of somebody's own, or a result without the metric
        return ", ".join(f"{n} {written[n]}" for n in [*metrics][:MOST_FIGURES])


def number(name: str, value: float) -> str:
    """A metric for people: `52.0 %` of a share, `10,605` of a count, `0.333` of another figure."""
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def title_of(benchmark: str) -> str:
    """A benchmark for people."""
    return WORDS["benchmarks"].get(benchmark, benchmark)


Outcome = Literal["computed", "cached", "failed", "interrupted"]


class Plain:
    """A run as log lines (in Prefect, on the run's page); the terminal's, in flows, adds to it."""

    def __init__(self) -> None:
        self.logger: Callable[[], Any] = lambda: logging.getLogger("klear")  # of this thread
        self.links: Mapping[str, str] = {}
        """Where the run is shown: name → address."""
        self.summary = ""
        """What the run came to, as Markdown."""
        self._paces: dict[str, Pace] = {}

    def started(self, stage: str, why: str) -> None:
        """The stage computes, because `why`."""
        self.logger().info("%s: computing (%s)", stage, why)
        self._paces[stage] = Pace()

    def progress(self, stage: str, done: float, total: float, note: str) -> str:
        """Returns how far the stage is, in words."""
        pace = self._paces.setdefault(stage, Pace())
        said = pace.said(done, total, note)
        if (now := time.monotonic()) >= pace.due:
            pace.due = now + SECONDS_BETWEEN_LINES
            self.tell(stage, said)
        return said

    def tell(self, stage: str, said: str) -> None:
        """How far a stage is, now and then."""
        self.logger().info("%s: %s", stage, said)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        took = ("(computed in {})" if outcome == "cached" else "in {}").format(duration(seconds))
        figures = ", ".join(filter(None, [took, figure_of(stage, metrics)]))
        self.logger().info("%s: %s %s", stage, outcome, figures)


chosen_display: ContextVar[Plain | None] = ContextVar("klear_display", default=None)
"""What runs that are started in this context show themselves on."""
