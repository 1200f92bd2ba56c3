"""The report's pictures: data in, SVG text out. Equal data gives equal bytes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS = ("#14595b", "#c7762e", "#6a5acd", "#a8432f", "#4f7cac", "#7a8b3c", "#8c6d8f", "#444c5c")
KEPT, REJECTED = "#14595b", "#dcc9a8"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "klear",  # ids are random otherwise
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b5b1a6",
    "axes.labelcolor": "#5b6675",
    "xtick.color": "#5b6675",
    "ytick.color": "#5b6675",
    "text.color": "#1f2733",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceae3",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: half the bytes
}


@dataclass(frozen=True)
class Series:
    """One line of a plot; `low` and `high` (same length) draw an interval around it."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bar:
    """Rows that a filter kept and rejected."""

    label: str
    kept: int
    rejected: int


@dataclass(frozen=True)
class Histogram:
    """Counts in bins of equal width."""

    label: str
    counts: tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """A share in [0, 1] and its interval."""

    label: str
    value: float
    low: float
    high: float


def scores_plot(checkpoints: Sequence[str], series: Sequence[Series]) -> str:
    """avg@k in percent per checkpoint with its interval, one line a benchmark."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(5.2, 2.9)
        for i, line in enumerate(series):
            shift = 0.06 * (i - (len(series) - 1) / 2)  # intervals side by side, not on top
            x, y = np.array(line.x) + shift, np.array(line.y)
            error = [y - np.array(line.low), np.array(line.high) - y]
            axes.errorbar(x, y, yerr=error, label=line.label, color=COLOURS[i % len(COLOURS)],
                          marker="o", markersize=5, capsize=3, elinewidth=1.1)  # fmt: skip
        axes.set_xticks(range(len(checkpoints)), checkpoints)
        axes.set_xlim(-0.4, len(checkpoints) - 0.6)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} %"))
        axes.grid(axis="x", visible=False)
        _legend(axes, len(series))
        return _svg(figure)


def funnel_plot(bars: Sequence[Bar]) -> str:
    """Rows kept and rejected by every filter, in the order of the pipeline."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(5.8, 0.7 + 0.31 * len(bars))
        y = range(len(bars))
        kept = [b.kept for b in bars]
        axes.barh(y, kept, color=KEPT, height=0.62, label="kept")
        axes.barh(y, [b.rejected for b in bars], left=kept, color=REJECTED, height=0.62,
                  label="rejected")  # fmt: skip
        widest = max((b.kept + b.rejected for b in bars), default=0) or 1
        for i, bar in enumerate(bars):
            total = bar.kept + bar.rejected
            share = f"{bar.kept:,} of {total:,}" if bar.rejected else f"{bar.kept:,}"
            axes.text(total + widest * 0.01, i, share, va="center", fontsize=8.5, color="#5b6675")
        axes.set_yticks(y, [b.label for b in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, widest * 1.22)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper left", ncols=2)
        return _svg(figure)


def curve_plot(title: str, series: Sequence[Series], x_label: str = "step") -> str:
    """A few training curves over steps, in one panel."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(4.8, 2.7)
        for i, line in enumerate(series):
            dots = "o" if len(line.x) < 3 else ""  # a line of one point is invisible
            axes.plot(
                line.x, line.y, label=line.label, marker=dots, color=COLOURS[i % len(COLOURS)]
            )
            if line.low:
                colour = COLOURS[i % len(COLOURS)]
                axes.fill_between(
                    line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0
                )
        axes.set_title(title)
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if len(series) > 1:
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.14 * len(series) * (high - low))  # room for the legend
            axes.legend(loc="upper left", fontsize=8.5)
        return _svg(figure)


def histogram_plot(title: str, rows: Sequence[Histogram], low: float, high: float) -> str:
    """Shares of a few populations over one quantity; the outermost bins hold what lies outside."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(4.8, 2.7)
        for i, row in enumerate(rows):
            counts = np.array(row.counts)
            edges = np.linspace(low, high, len(counts) + 1)
            colour = COLOURS[i % len(COLOURS)]
            share = counts / max(counts.sum(), 1)
            axes.stairs(share, edges, label=row.label, color=colour, fill=True, alpha=0.35)
            axes.stairs(share, edges, color=colour, linewidth=1.4)
        axes.set_title(title)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g} %"))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        _legend(axes, len(rows))
        return _svg(figure)


def intervals_plot(rows: Sequence[Interval]) -> str:
    """One dot with its interval a row, in percent."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(5.8, 0.8 + 0.36 * len(rows))
        for y, row in enumerate(rows):
            axes.plot([100 * row.low, 100 * row.high], [y, y], color=KEPT, linewidth=2)
            axes.plot(100 * row.value, y, "o", color=KEPT, markersize=6)
            text = f"{100 * row.value:.1f}  [{100 * row.low:.1f}, {100 * row.high:.1f}]"
            axes.text(101, y, text, va="center", fontsize=8.5, color="#5b6675")
        axes.set_yticks(range(len(rows)), [r.label for r in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} %"))
        axes.grid(axis="y", visible=False)
        return _svg(figure)


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state
    return figure, figure.add_subplot()


def _legend(axes: Axes, count: int) -> None:
    axes.legend(loc="best", fontsize=8.5, ncols=1 if count < 5 else 2)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
