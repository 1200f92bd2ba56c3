"""Alarms: the log line of a training step that looks wrong after the lines before it. Divergence is
seen in one line. A policy that games its reward shows in withheld tests, length and form, which are
noisy: the median of the last few lines must have moved."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from .launch.result_files import ALARM

DIVERGENCE, GAP, LENGTH, FORMAT, NO_LESSON = (
    ALARM + name for name in ("divergence", "withheld_gap", "length", "format", "no_lesson")
)
EMPTY_ROLLOUTS = 3  # in a row
WINDOW = 50
TOO_HIGH = {"loss": 3.0, "grad_norm": 10.0}

RECENT = 5  # lines: one step of a few answers says little
SHARE, FACTOR = 0.2, 2.0
Lines = Sequence[Mapping[str, float]]


def alarms(lines: Lines, now: Mapping[str, float]) -> dict[str, str]:
    """The alarms that ring at the log line `now` after the `lines` before it, and why."""
    reasons = {DIVERGENCE: diverges(lines, now), NO_LESSON: teaches_nothing([*lines, now])}
    reasons |= {alarm: drifts(lines, now, alarm) for alarm in DRIFTS}
    return {alarm: why for alarm, why in reasons.items() if why}


def diverges(lines: Lines, now: Mapping[str, float]) -> str:
    """Why the log line `now` looks like divergence after the `lines` before it, or nothing.

    The loss may be 3 times, the gradient norm 10 times its median over the last 50 lines, or the
    first line where that was lower. Not the loss of RL, which is about 0. NaN and infinity count on
    any line, and an update left out for them, unless that is how fp16 finds the scale of its loss.
    """
    for name in (*TOO_HIGH, "eval/loss"):
        if not math.isfinite(now.get(name, 0.0)):
            return f"{name} is {now[name]}"
    if (skipped := now.get("skipped_updates", 0.0)) and "loss_scale" not in now:
        return f"{skipped:g} of {now['updates']:g} updates had a gradient that was NaN or infinite"
    for name, factor in TOO_HIGH.items():
        values = [line[name] for line in lines if 0 < line.get(name, 0.0) < math.inf]
        if values and name in now and not (name == "loss" and "updates" in now):
            usual = min(statistics.median(values[-WINDOW:]), values[0])
            if now[name] > factor * usual:
                high = f"{name} {now[name]:.3g} is over {factor:g} times"
                return f"{high} its running median {usual:.3g}"
    return ""


def teaches_nothing(lines: Lines) -> str:
    """Why the last 3 rollouts of RL had nothing to learn from, or nothing: no group with answers of
    different rewards, or one and the same fault of form in all answers."""
    recent = lines[-EMPTY_ROLLOUTS:]
    if len(recent) < EMPTY_ROLLOUTS or not all("updates" in line for line in recent):
        return ""
    row = f"in {EMPTY_ROLLOUTS} rollouts in a row"
    if all(not line["updates"] or line.get("zero_advantage_share") == 1 for line in recent):
        return f"{row} all answers of a problem had the same reward"
    if all(line.get("reward/one_fault") == 1 for line in recent):
        return f"{row} all answers had the same fault of form"
    return ""


Bounds = Callable[[float, float], tuple[float, float]]
"""From the median of a metric, and of its first lines: its usual lowest and highest value."""
DRIFTS: Mapping[str, tuple[str, Bounds]] = {
    GAP: ("withheld/gap", lambda usual, first: (-math.inf, min(usual, first) + SHARE)),
    LENGTH: ("completions/mean_length", lambda usual, _: (usual / FACTOR, usual * FACTOR)),
    FORMAT: ("reward/format", lambda usual, first: (max(usual, first) - SHARE, math.inf)),
}
"""Alarm → its metric and bounds. Slow drift takes the running median along, so gap and format are
held to where they began, too; length is not, for longer answers may be what is learned."""


def drifts(lines: Lines, now: Mapping[str, float], alarm: str) -> str:
    """Why the metric of `alarm` has drifted at the log line `now`, or nothing: the median of the
    last 5 lines that have it is outside of the bounds by up to 50 lines before, 5 at least."""
    name, bounds = DRIFTS[alarm]
    values = [line[name] for line in (*lines, now) if name in line]
    before, recent = values[:-RECENT], statistics.median(values[-RECENT:] or [0.0])
    if name not in now or len(before) < RECENT:
        return ""
    usual = statistics.median(before[-WINDOW:])
    low, high = bounds(usual, statistics.median(before[:RECENT]))
    if low <= recent <= high:
        return ""
    bound = f"above {high:.3g}" if recent > high else f"below {low:.3g}"
    return f"{name} {recent:.3g} is {bound}, its running median {usual:.3g}"
