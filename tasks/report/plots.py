"""The report's pictures: data in, SVG text out. Equal data gives equal bytes."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import MaxNLocator, PercentFormatter

COLOURS = ("#14595b", "#c7762e", "#6a5acd", "#a8432f", "#4f7cac", "#7a8b3c", "#8c6d8f", "#444c5c")
KEPT, REJECTED, SOFT = "#14595b", "#dcc9a8", "#5b6675"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "klear",  # ids are random otherwise
    "svg.fonttype": "none",  # text stays text: half the bytes
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b5b1a6",
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.color": "#1f2733",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.color": "#eceae3",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class Series:
    """One line of a plot; `low` and `high` (same length) draw an interval around it."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def scores_plot(checkpoints: Sequence[str], series: Sequence[Series]) -> str:
    """Shares per checkpoint with their intervals, one line a benchmark."""
    with _canvas(5.2, 2.9) as (axes, svg):
        for i, line in enumerate(series):
            x = np.array(line.x) + 0.06 * (i - (len(series) - 1) / 2)  # intervals side by side
            error = np.abs([np.subtract(line.y, line.low), np.subtract(line.high, line.y)])
            axes.errorbar(x, line.y, error, label=line.label, marker="o", markersize=5, capsize=3)
        axes.set_xticks(range(len(checkpoints)), checkpoints)
        axes.set_xlim(-0.4, len(checkpoints) - 0.6)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="x", visible=False)
        axes.legend(ncols=1 if len(series) < 5 else 2)
    return svg.getvalue()


def funnel_plot(bars: Sequence[tuple[str, int, int]]) -> str:
    """(label, rows kept, rows rejected) of every filter, in the order of the pipeline."""
    with _canvas(5.8, 0.7 + 0.31 * len(bars)) as (axes, svg):
        names, kept, rejected = zip(*bars, strict=True)
        y = range(len(bars))
        axes.barh(y, kept, color=KEPT, height=0.62, label="kept")
        top = axes.barh(y, rejected, left=kept, color=REJECTED, height=0.62, label="rejected")
        shares = [f"{k:,} of {k + r:,}" if r else f"{k:,}" for _, k, r in bars]
        axes.bar_label(top, shares, padding=3, fontsize=8.5, color=SOFT)
        axes.set_yticks(y, names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.22 * max(*(k + r for _, k, r in bars), 1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.figure.legend(loc="outside upper left", ncols=2)
    return svg.getvalue()


def curve_plot(title: str, series: Sequence[Series], x_label: str = "step") -> str:
    """A few training curves over steps, in one panel."""
    with _canvas(4.8, 2.7) as (axes, svg):
        for line, colour in zip(series, COLOURS, strict=False):
            dots = "o" if len(line.x) < 3 else ""  # a line of one point is invisible
            axes.plot(line.x, line.y, label=line.label, marker=dots, color=colour)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
        axes.set_title(title)
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if len(series) > 1:
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.14 * len(series) * (high - low))  # room for the legend
            axes.legend(loc="upper left")
    return svg.getvalue()


def histogram_plot(title: str, rows: Mapping[str, Sequence[float]], low: float, high: float) -> str:
    """Shares of a few populations over one quantity; the outermost bins hold what lies outside."""
    with _canvas(4.8, 2.7) as (axes, svg):
        for label, counts in rows.items():
            share = np.array(counts) / max(sum(counts), 1)
            edges = np.linspace(low, high, len(counts) + 1)
            axes.stairs(share, edges, label=label, fill=True, alpha=0.5)
        axes.set_title(title)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend()
    return svg.getvalue()


@contextmanager
def _canvas(width: float, height: float) -> Iterator[tuple[Axes, io.StringIO]]:
    """Axes to draw on; after the block the text holds the SVG. No pyplot: no global state."""
    svg = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot(), svg
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
