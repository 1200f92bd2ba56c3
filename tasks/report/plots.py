"""The pages' pictures: data in, SVG text out. Equal data gives equal bytes."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STYLE = Path(__file__).with_name("templates") / "plots.mplstyle"


@dataclass(frozen=True)
class Series:
    """One line of a plot; `low` and `high` (same length) draw an interval around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def scores_plot(checkpoints: Sequence[str], series: Sequence[Series]) -> str:
    """Shares per checkpoint with their intervals, one line a benchmark."""
    with _canvas(5.2, 2.9) as (axes, svg):
        for i, line in enumerate(series):
            x = [at + 0.06 * (i - (len(series) - 1) / 2) for at in line.x]  # intervals side by side
            error = [
                [abs(y - end) for y, end in zip(line.y, ends, strict=True)]
                for ends in (line.low, line.high)
            ]
            axes.errorbar(x, line.y, error, label=line.label, marker="o", markersize=5, capsize=3)
        axes.set_xticks(range(len(checkpoints)), checkpoints)
        axes.set_xlim(-0.4, len(checkpoints) - 0.6)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.grid(axis="x", visible=False)
        axes.legend(ncols=1 if len(series) < 5 else 2)
    return svg.getvalue()


def curve_plot(title: str, series: Sequence[Series]) -> str:
    """A few training curves over steps, in one panel."""
    with _canvas(4.8, 2.7) as (axes, svg):
        for line in series:
            dots = "o" if len(line.x) < 3 else ""  # a line of one point is invisible
            (drawn,) = axes.plot(line.x, line.y, label=line.label, marker=dots)
            if line.low:
                colour = drawn.get_color()
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=6, integer=True)
        axes.locator_params(axis="y", nbins=5)
        if len(series) > 1:
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.14 * len(series) * (high - low))  # room for the legend
            axes.legend(loc="upper left")
    return svg.getvalue()


@contextmanager
def _canvas(width: float, height: float) -> Iterator[tuple[Any, io.StringIO]]:
    """Axes to draw on; after the block the text holds the SVG. No pyplot: no global state."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure

    svg = io.StringIO()
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot(), svg
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
