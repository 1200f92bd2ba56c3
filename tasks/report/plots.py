"""The pages' pictures: data in, SVG text out. Equal data gives equal bytes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = Path(__file__).with_name("templates") / "plots.mplstyle"


@dataclass(frozen=True)
class Series:
    """One line of a plot; `low` and `high` (same length) draw an interval around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def curve_plot(title: str, series: Sequence[Series]) -> str:
    """A few training curves over steps, in one panel."""
    import matplotlib  # slow to import
    from matplotlib.figure import Figure  # not pyplot: no global state

    svg = io.StringIO()
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(4.8, 2.7), layout="constrained")
        axes = figure.add_subplot()
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
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()
