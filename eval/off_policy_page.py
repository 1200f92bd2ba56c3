"""The off-policy diagnostic of an RL stage: what leaves the clip range, and what it carries.

GPPO differs from clipping in the gradient of exactly these tokens (§3.2.2), so a run in which
next to none leaves the range cannot tell the two apart.
"""

from collections.abc import Callable, Mapping, Sequence

from eval.effects import band
from eval.off_policy import HIGH_ENTROPY, Counted, OffPolicy, summed
from eval.page import Block, Figure, Figures, Heading, Paragraph, Table
from eval.plots import Series, curve_plot

_ABOUT = (
    "Tokens whose ratio δ = π/π_old lies outside the clip range. Clipping cuts off the gradient of "
    "those with Ã > 0 above the range and Ã < 0 below it; GPPO keeps it at the bound. The gradient "
    "of a token is counted by its length with respect to the logits, |F·Ã|·2(1 − π); over several "
    "updates each counts by its tokens. Shares here, and those of the curves off_policy/…, are of "
    "tokens with an advantage; clip/high and clip/low are shares of all answer tokens."
)
_LINES = (
    ("Ã > 0, above (clipped)", "positive", "above"),
    ("Ã < 0, below (clipped)", "negative", "below"),
    ("Ã > 0, below", "positive", "below"),
    ("Ã < 0, above", "negative", "above"),
)
Rows = Sequence[Counted]


def off_policy_blocks(rows: Rows, slug: str) -> list[Block]:
    """Figures and the tables by entropy for one stage; empty where nothing was counted."""
    if not rows:
        return []
    whole = summed([r.counts for r in rows])
    return [
        Paragraph(_ABOUT),
        Figures(tuple(off_policy_figures(rows, slug))),
        _outside(whole),
        _by_entropy(whole),
    ]


def off_policy_figures(rows: Rows, slug: str) -> list[Figure]:
    """Shares by sign and side, shares clipped, and clipped tokens by update of the rollout."""
    steps = _grouped(rows, "step")
    updates = _grouped(rows, "update")
    sides = [
        Series(label, *_points(steps, lambda c, s=sign, d=side: c.on(s, d)))
        for label, sign, side in _LINES
    ]
    clipped = [
        Series("tokens", *_points(steps, lambda c: c.clipped)),
        Series("policy gradient", *_points(steps, lambda c: c.clipped_gradient)),
        Series(f"tokens ≥ {HIGH_ENTROPY:g} nats", *_points(steps, _at_high_entropy)),
    ]
    drift = [Series("clipped", *_points(updates, lambda c: c.clipped, first=1))]
    return [
        Figure(f"{slug}_outside", curve_plot("Outside the clip range, % of their sign", sides),
               "share of tokens outside the clip range by sign of the advantage and step"),
        Figure(f"{slug}_clipped", curve_plot("Clipped, %", clipped),
               "share of tokens and of the policy gradient that is clipped, by step"),
        Figure(f"{slug}_drift",
               curve_plot("Clipped tokens, %, by update", drift, "update of the rollout"),
               "share of clipped tokens by update of a rollout, over all steps"),
    ]  # fmt: skip


def off_policy_arms(arms: Mapping[str, Sequence[Rows]], slug: str = "off_policy") -> list[Block]:
    """The same for the arms of an experiment, each with the rows of its seeds."""
    counted = {arm: [r for r in seeds if r] for arm, seeds in arms.items()}
    counted = {arm: seeds for arm, seeds in counted.items() if seeds}
    if not counted:
        return []
    wholes = {a: summed([r.counts for rows in seeds for r in rows]) for a, seeds in counted.items()}
    return [
        Heading("Off-policy tokens"),
        Paragraph(_ABOUT),
        Table(
            ("arm", "Ã > 0 outside, %", "Ã < 0 outside, %", "clipped, %",
             f"clipped of ≥ {HIGH_ENTROPY:g} nats, %", "their share of the gradient, %"),
            tuple((arm, *map(_percent, (w.outside("positive"), w.outside("negative"), w.clipped,
                                        w.clipped_at_high_entropy, w.clipped_gradient)))
                  for arm, w in wholes.items()),
            caption="Over all updates and seeds.",
        ),
        Figures((
            Figure(f"{slug}_clipped", curve_plot("Clipped tokens, %", _bands(counted)),
                   "share of clipped tokens by step, mean and range over seeds of each arm"),
        )),
        *(table(w, arm) for arm, w in wholes.items() for table in (_outside, _by_entropy)),
    ]  # fmt: skip


def _bands(arms: Mapping[str, Sequence[Rows]]) -> list[Series]:
    series = []
    for arm, seeds in arms.items():
        curves = []
        for rows in seeds:
            x, y = _points(_grouped(rows, "step"), lambda c: c.clipped)
            curves.append(dict(zip(map(int, x), y, strict=True)))
        over = band(curves)
        if over.steps:
            series.append(Series(arm, over.steps, over.mean, over.low, over.high))
    return series


def _grouped(rows: Rows, by: str) -> dict[int, OffPolicy]:
    """Sums over the rows of one step, or of one place in the rollout."""
    groups: dict[int, list[OffPolicy]] = {}
    for row in rows:
        groups.setdefault(getattr(row, by), []).append(row.counts)
    return {place: summed(counts) for place, counts in sorted(groups.items())}


def _points(
    groups: Mapping[int, OffPolicy], of: Callable[[OffPolicy], float], first: int = 0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(places, percent)."""
    return tuple(float(p + first) for p in groups), tuple(100 * of(c) for c in groups.values())


def _at_high_entropy(counts: OffPolicy) -> float:
    return counts.clipped_at_high_entropy


def _outside(counts: OffPolicy, arm: str = "") -> Table:
    """Which tokens leave the range, on either side: those of which sign, and how uncertain."""
    columns = ("entropy, nats", "Ã > 0, % of tokens", "of these outside, %",
               "Ã < 0, % of tokens", "of these outside, %")  # fmt: skip
    rows = tuple((name, *map(_percent, shares)) for name, *shares in counts.outside_by_entropy())
    return Table(columns, rows, caption=arm)


def _by_entropy(counts: OffPolicy, arm: str = "") -> Table:
    columns = ("entropy, nats", "tokens, %", "of these clipped, %",
               "of the gradient, %", "of this on clipped tokens, %")  # fmt: skip
    rows = tuple((name, *map(_percent, shares)) for name, *shares in counts.by_entropy())
    return Table(columns, rows, caption=arm)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
