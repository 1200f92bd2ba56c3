"""The pages' pictures: data in, SVG text out. Equal data gives equal bytes."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STYLE = Path(__file__).with_name("templates") / "plots.mplstyle"
FEWEST_SMOOTHED = 10  # points of a curve


@dataclass(frozen=True)
class Series:
    """One line of a plot; `low` and `high` (same length) draw an interval around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def curve_plot(
    title: str, series: Sequence[Series], unit: str = "", y_range: tuple[float, float] | None = None
) -> str:
    """A few training curves over steps, in one panel; long ones smoothed, over the raw ones.
    `y_range` is that of the data: panels with equal ones can be compared."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure  # not pyplot: no global state

    svg = io.StringIO()
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(4.8, 2.7), layout="constrained")
        axes = figure.add_subplot()
        for line in series:
            dots = "o" if len(line.x) < 3 else ""  # a line of one point is invisible
            drawn = axes.plot(line.x, smoothed(line.y), label=line.label, marker=dots)
            colour = drawn[0].get_color()
            if len(line.y) >= FEWEST_SMOOTHED:
                axes.plot(line.x, line.y, color=colour, alpha=0.25, lw=0.8, zorder=1)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.set_ylabel(unit)
        axes.locator_params(axis="x", nbins=6, integer=True)
        axes.locator_params(axis="y", nbins=5)
        low, high = axes.get_ylim()
        if y_range:
            margin = 0.05 * (y_range[1] - y_range[0]) or 0.05
            low, high = y_range[0] - margin, y_range[1] + margin
        legend = len(series) > 1
        axes.set_ylim(low, high + legend * 0.14 * len(series) * (high - low))  # room for the legend
        if legend:
            axes.legend(loc="upper left")
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()


def rollout_histograms(rows: Sequence[Mapping[str, float]]) -> Any:
    """A figure of the tokens and rewards of answers, in each half of the steps."""
    import matplotlib
    from matplotlib.figure import Figure

    middle = max(row["step"] for row in rows) / 2
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(9.6, 2.9), dpi=150, layout="constrained")
        for axes, name in zip(figure.subplots(1, 2), ("tokens", "reward"), strict=True):
            values = [(row["step"] > middle, row[name]) for row in rows if row[name] is not None]
            halves = [[x for late, x in values if late == half] for half in (False, True)]
            axes.hist(halves, bins=20, label=["first half of the steps", "second half"])
            axes.set(xlabel=f"{name} of an answer", ylabel="answers")
            axes.legend()
    return figure


def smoothed(y: Sequence[float]) -> Any:
    """The mean of a window around each point, a fifteenth of the curve; a short curve as it is."""
    if len(y) < FEWEST_SMOOTHED:
        return y
    window = np.ones(2 * max(1, len(y) // 30) + 1)
    return np.convolve(y, window, "same") / np.convolve(np.ones(len(y)), window, "same")
