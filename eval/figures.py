"""The pictures beside one stage's result: curves, histograms, scores with their intervals."""

import json
from dataclasses import replace
from pathlib import Path

from configs.evaluate_stage import LEARNING_CURVE
from eval.benchmarks import RESULTS
from eval.learning import ACCURACY
from eval.off_policy import read_off_policy
from eval.off_policy_page import off_policy_figures
from eval.plots import Histogram, Interval, curve_plot, histogram_plot, intervals_plot
from eval.report_scores import title_of
from eval.report_training import RL_PANELS, SFT_PANELS, panels
from eval.run_facts import curves_of

CURVES, RESULTS_FILE = "logs/metrics.jsonl", "results.json"
HISTOGRAMS, RANGES = "logs/histograms.jsonl", "logs/histogram_ranges.json"
CURVES_SHOWN = {
    "Loss",
    "Reward",
    "Answer length, tokens",
    "Entropy",
    "Share of tokens clipped",
}
SHOWN = {"answer_tokens": "Answer length, tokens", "reward": "Reward"}


def stage_figures(stage: str, folder: Path) -> dict[str, str]:
    """SVG by name for what lies in the folder of a stage; empty for most data stages."""
    found: dict[str, str] = {}
    if (folder / CURVES).exists():
        every = RL_PANELS if stage.startswith("rl") else SFT_PANELS
        wanted = [panel for panel in every if panel[0] in CURVES_SHOWN]
        curves = curves_of(folder / CURVES)
        drawn = panels(stage, stage, curves, wanted)
        found |= {f.name.removeprefix(f"{stage}_"): f.svg for f in drawn}
    if (folder / LEARNING_CURVE).exists():
        lines = [
            replace(line, label=title_of(name.removeprefix(ACCURACY)))
            for name, line in curves_of(folder / LEARNING_CURVE).items()
        ]
        found["learning_curve"] = curve_plot("Accuracy over training", lines, "rollout step")
    found |= _histograms(folder)
    if rows := read_off_policy(folder):
        found |= {f.name: f.svg for f in off_policy_figures(rows, "off_policy")}
    if (folder / RESULTS_FILE).exists():
        found |= _scores(folder / RESULTS_FILE)
    return found


def _histograms(folder: Path) -> dict[str, str]:
    """How a quantity was spread over the first and the last rollout step."""
    journal, ranges = folder / HISTOGRAMS, folder / RANGES
    if not (journal.exists() and ranges.exists()):
        return {}
    edges = json.loads(ranges.read_text())
    steps = [json.loads(line) for line in journal.read_text().splitlines()]
    if not steps:
        return {}
    chosen = {1: steps[0]} if len(steps) == 1 else {1: steps[0], len(steps): steps[-1]}
    return {
        f"histogram_{name}": histogram_plot(
            title,
            [Histogram(f"step {n}", tuple(counts[name])) for n, counts in chosen.items()],
            *edges[name],
        )
        for name, title in SHOWN.items()
        if name in edges
    }


def _scores(path: Path) -> dict[str, str]:
    rows = [
        Interval(f"{title_of(r.name)} avg@{r.k}", r.avg, r.ci_low, r.ci_high)
        for r in RESULTS.validate_json(path.read_bytes())
        if r.avg is not None and r.ci_low is not None and r.ci_high is not None
    ]
    return {"avg_at_k": intervals_plot(rows)} if rows else {}
