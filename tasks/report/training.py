"""Training in pictures: curves, histograms, and the tokens that leave the clip range.

GPPO differs from clipping in the gradient of exactly those tokens (§3.2.2), so a run in which next
to none leaves the range cannot tell the two apart.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.settings.evaluation import LEARNING_CURVE
from tasks.ablation.effects import band
from tasks.report.page import Figure, render
from tasks.report.plots import Series, curve_plot, histogram_plot
from tasks.report.results import (
    ACCURACY,
    RESULTS_FILE,
    Evaluation,
    Outputs,
    curves_of,
    read_results,
)
from tasks.report.scores import scores_figure, title_of
from training.layout import HISTOGRAM_RANGES, METRICS
from training.layout import HISTOGRAMS as HISTOGRAM_JOURNAL
from training.rl.off_policy_counts import HIGH_ENTROPY, Counted, OffPolicy, read_off_policy, summed

MAX_LINES = 4
# (title, pattern of the metrics' names, whether a stage's own folder shows it too); a panel
# without a matching metric is left out.
SFT_PANELS = (
    ("Loss", r"(eval_)?loss", True),
    ("Token accuracy", r"(eval_)?mean_token_accuracy", False),
    ("Gradient norm", r"grad_norm", False),
    ("Learning rate", r"learning_rate", False),
)
RL_PANELS = (
    ("Reward", r"reward/(mean|pass_rate)", True),
    ("Share of right rollouts", r"reward/correct", False),
    ("Answer length, tokens", r"completions/mean_(terminated_)?length", True),
    ("Entropy", r"entropy", True),
    ("Share of tokens clipped", r"clip/(high|low)", True),
    ("Gradient norm", r"grad_norm", False),
    ("Truncated, without a learning signal", r"completions/clipped_ratio|zero_advantage_share",
     False),
    ("Log-ratio, lowest and highest", r"ratio/log_(min|max)", False),
)  # fmt: skip
TRAINED = {"sft": "SFT", "rl_math": "RL, math", "rl_code": "RL, code"}
HISTOGRAMS = {"answer_tokens": "Answer length, tokens", "reward": "Reward"}
SIDES = (
    ("Ã > 0, above (clipped)", "positive", "above"),
    ("Ã < 0, below (clipped)", "negative", "below"),
    ("Ã > 0, below", "positive", "below"),
    ("Ã < 0, above", "negative", "above"),
)
Rows = Sequence[Counted]


def training_facts(outputs: Outputs) -> tuple[list[dict[str, Any]], list[Figure]]:
    """Of every training stage: its title, curves and off-policy diagnostic; and all pictures."""
    stages = []
    for stage, title in TRAINED.items():
        artifact = outputs.get(stage)
        figures = _panels(stage, artifact.folder, f"{stage}_") if artifact else []
        rows = read_off_policy(artifact.folder) if artifact else []
        drift = off_policy_figures(rows, f"{stage}_off_policy")
        if figures or drift:
            text = render("off_policy.md", figures=drift, wholes={"": whole(rows)}) if rows else ""
            stages.append({"title": title, "figures": [*figures], "off_policy": text,
                           "drawn": [*figures, *drift]})  # fmt: skip
    return stages, [figure for stage in stages for figure in stage["drawn"]]


def stage_figures(stage: str, folder: Path) -> dict[str, str]:
    """SVG by name for what lies in the folder of a stage; empty for most data stages."""
    drawn = _panels(stage, folder, only_chief=True)
    found = {f.name: f.svg for f in (*drawn, *off_policy_figures(read_off_policy(folder)))}
    if curves := curves_of(folder / LEARNING_CURVE):
        lines = [series(title_of(n.removeprefix(ACCURACY)), points) for n, points in curves.items()]
        found["learning_curve"] = curve_plot("Accuracy over training", lines, "rollout step")
    if (folder / RESULTS_FILE).exists():
        found |= {f.name: f.svg for f in scores_figure([Evaluation(stage, read_results(folder))])}
    return found | _histograms(folder)


def series(label: str, points: Mapping[int, float]) -> Series:
    return Series(label, tuple(points), tuple(points.values()))


def _panels(stage: str, folder: Path, prefix: str = "", only_chief: bool = False) -> list[Figure]:
    """One figure for each panel that has a metric; a metric is shown once."""
    curves, figures = curves_of(folder / METRICS), []
    for title, pattern, is_chief in RL_PANELS if stage.startswith("rl") else SFT_PANELS:
        names = [n for n in curves if re.fullmatch(pattern, n)][:MAX_LINES]
        if names and (is_chief or not only_chief):
            slug = re.sub(r"[^a-z]+", "_", title.lower()).strip("_")
            svg = curve_plot(title, [series(name, curves[name]) for name in names])
            alt = f"{TRAINED.get(stage, stage)}: {', '.join(names)} by step"
            figures.append(Figure(prefix + slug, svg, alt))
    return figures


def _histograms(folder: Path) -> dict[str, str]:
    """How a quantity was spread over the first and the last rollout step."""
    journal, ranges = folder / HISTOGRAM_JOURNAL, folder / HISTOGRAM_RANGES
    steps = journal.read_text().splitlines() if journal.exists() and ranges.exists() else []
    if not steps:
        return {}
    edges = json.loads(ranges.read_text())
    chosen = {number: json.loads(steps[number - 1]) for number in (1, len(steps))}
    return {
        f"histogram_{name}": histogram_plot(
            title, {f"step {n}": counts[name] for n, counts in chosen.items()}, *edges[name]
        )
        for name, title in HISTOGRAMS.items()
        if name in edges
    }


def off_policy_figures(rows: Rows, slug: str = "off_policy") -> list[Figure]:
    """Shares by sign and side, shares clipped, and clipped tokens by update of the rollout."""
    if not rows:
        return []

    def by_step(label: str, of: Callable[[OffPolicy], float]) -> Series:
        return series(label, shares(rows, "step", of))

    sides = [by_step(label, lambda c, s=sign, d=side: c.on(s, d)) for label, sign, side in SIDES]
    clipped = [
        by_step("tokens", lambda c: c.clipped),
        by_step("policy gradient", lambda c: c.clipped_gradient),
        by_step(f"tokens ≥ {HIGH_ENTROPY:g} nats", lambda c: c.clipped_at_high_entropy),
    ]
    by_update = {n + 1: share for n, share in shares(rows, "update", lambda c: c.clipped).items()}
    outside = curve_plot("Outside the clip range, % of their sign", sides)
    drift = curve_plot(
        "Clipped tokens, %, by update", [series("clipped", by_update)], "update of the rollout"
    )
    return [
        Figure(f"{slug}_outside", outside,
               "share of tokens outside the clip range by sign of the advantage and step"),
        Figure(f"{slug}_clipped", curve_plot("Clipped, %", clipped),
               "share of tokens and of the policy gradient that is clipped, by step"),
        Figure(f"{slug}_drift", drift,
               "share of clipped tokens by update of a rollout, over all steps"),
    ]  # fmt: skip


def off_policy_arms(arms: Mapping[str, Sequence[Rows]]) -> tuple[str, list[Figure]]:
    """The diagnostic for the arms of an experiment, each with the rows of its seeds."""
    counted = {arm: [rows for rows in seeds if rows] for arm, seeds in arms.items()}
    counted = {arm: seeds for arm, seeds in counted.items() if seeds}
    if not counted:
        return "", []
    lines = bands(
        {arm: [shares(rows, "step", lambda c: c.clipped) for rows in seeds]
         for arm, seeds in counted.items()}
    )  # fmt: skip
    alt = "share of clipped tokens by step, mean and range over seeds of each arm"
    figures = [Figure("off_policy_clipped", curve_plot("Clipped tokens, %", lines), alt)]
    wholes = {arm: whole([r for rows in seeds for r in rows]) for arm, seeds in counted.items()}
    text = render("off_policy.md", figures=figures, wholes=wholes)
    return f"## Off-policy tokens\n\n{text}", figures


def bands(arms: Mapping[str, Sequence[Mapping[int, float]]]) -> list[Series]:
    """A line for every arm with points: the mean over its seeds, and their range."""
    found = {arm: band(curves) for arm, curves in arms.items()}
    return [Series(arm, *over) for arm, over in found.items() if over[0]]


def whole(rows: Rows) -> OffPolicy:
    return summed([row.counts for row in rows])


def shares(rows: Rows, by: str, of: Callable[[OffPolicy], float]) -> dict[int, float]:
    """Percent at every step, or at every place in the rollout (`update`)."""
    groups: dict[int, list[OffPolicy]] = {}
    for row in rows:
        groups.setdefault(getattr(row, by), []).append(row.counts)
    return {place: 100 * of(summed(counts)) for place, counts in sorted(groups.items())}
