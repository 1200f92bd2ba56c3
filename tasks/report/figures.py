"""Metrics, time and size for people: the line of a finished stage, and the names of benchmarks."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

SCORE = "/avg"
MOST_FIGURES = 2  # of a stage that has no sentence
WORDS = tomllib.loads(Path(__file__).with_name("figures.toml").read_text())


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
