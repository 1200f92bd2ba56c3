"""The pages' pictures: data in, SVG text out. Equal data gives equal bytes."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STYLE = Path(__file__).with_suffix(".mplstyle")
FEWEST_SMOOTHED = 10  # points of a curve
WIDEST_EFFECT = 26.0  # points to either side of 0 in a forest plot
VERDICT_COLOURS = {"confirmed": "#14595b", "reversed": "#a8432f", "not seen": "#9b9587"}


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


@dataclass(frozen=True)
class Effect:
    """A row of a forest plot: a difference with its interval, beside those of the paper."""

    group: str
    label: str
    points: float
    low: float
    high: float
    verdict: str
    papers: Sequence[float] = ()


def forest_plot(effects: Sequence[Effect]) -> str:
    """Effects in groups from top to bottom, each below its label, as wide as a phone. An interval
    that is wider than the picture ends in an arrow."""
    import matplotlib
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(e.group for e in effects))
    lines = len(effects) + 0.8 * len(groups) + 2
    svg, y, edge = io.StringIO(), -0.2, WIDEST_EFFECT
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(4.0, 0.33 * lines), layout="constrained")
        axes = figure.add_subplot()
        for group in groups:
            axes.text(-edge, y, group, weight="bold", va="center")
            y -= 0.8
            for e in (e for e in effects if e.group == group):
                colour = VERDICT_COLOURS[e.verdict]
                axes.text(-edge, y, e.label, size=8, va="center")
                axes.plot(np.clip((e.low, e.high), -edge, edge), (y - 0.42,) * 2, color=colour)
                ends = [(e.low < -edge, -edge, "<"), (e.high > edge, edge, ">")]
                marks = [(x, mark) for beyond, x, mark in ends if beyond]
                for x, mark in [*marks, (float(np.clip(e.points, -edge, edge)), "o")]:
                    axes.plot(x, y - 0.42, mark, color=colour, ms=4)
                for x in e.papers:
                    axes.plot(x, y - 0.42, "D", mfc="none", color="#c7762e", ms=4.5)
                y -= 1
        axes.axvline(0, color="#5b6675", lw=0.8, zorder=0)
        axes.set(xlim=(-edge - 1, edge + 1), ylim=(y - 0.1, 0.4), yticks=[])
        axes.spines.left.set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("points of accuracy, 95 % interval; ◇ the paper's")
        for word, colour in VERDICT_COLOURS.items():
            axes.plot([], [], "o-", color=colour, ms=4, label=word)
        figure.legend(loc="outside upper left", ncols=3, handlelength=1.2, columnspacing=1.0)
        plain: Any = {"format": "svg", "metadata": {"Date": None, "Creator": None}}
        figure.savefig(svg, facecolor="white", **plain)  # GitHub shows it on black, too
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
