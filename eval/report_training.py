"""The report's training curves, the answers to read, and what each stage cost."""

import re
from collections.abc import Sequence

from eval.off_policy import read_off_policy
from eval.off_policy_page import off_policy_blocks
from eval.page import Block, Cell, Figure, Figures, Fold, Heading, Paragraph, Table, Verbatim
from eval.plots import Series, curve_plot
from eval.run_facts import COST_METRICS, TOKEN_METRICS, RunFacts, first
from eval.run_readings import Reading, answers, rollouts

MAX_LINES = 4
LONGEST_VALUE = 160
# (title, pattern of the metrics' names); a panel without a matching metric is left out.
SFT_PANELS = (
    ("Loss", r"(eval_)?loss"),
    ("Token accuracy", r"(eval_)?mean_token_accuracy"),
    ("Gradient norm", r"grad_norm"),
    ("Learning rate", r"learning_rate"),
)
RL_PANELS = (
    ("Reward", r"reward/(mean|pass_rate)"),
    ("Share of right rollouts", r"reward/correct"),
    ("Answer length, tokens", r"completions/mean_(terminated_)?length"),
    ("Entropy", r"entropy"),
    ("Share of tokens clipped", r"clip/(high|low)"),
    ("Gradient norm", r"grad_norm"),
    ("Truncated, without a learning signal", r"completions/clipped_ratio|zero_advantage_share"),
    ("Log-ratio, lowest and highest", r"ratio/log_(min|max)"),
)
STAGES = (("sft", "SFT", SFT_PANELS), ("rl_math", "RL, math", RL_PANELS),
          ("rl_code", "RL, code", RL_PANELS))  # fmt: skip


def training_section(facts: RunFacts) -> list[Block]:
    """Curves of every training stage that left some."""
    blocks: list[Block] = []
    for stage, title, wanted in STAGES:
        figures = panels(stage, title, facts.curves(stage), wanted)
        if figures:
            blocks += [Heading(title, level=3), Figures(tuple(figures))]
        if output := facts.get(stage):
            diagnosed = off_policy_blocks(read_off_policy(output.folder), f"{stage}_off_policy")
            if diagnosed:
                blocks.append(Fold(f"{title}: tokens outside the clip range", tuple(diagnosed)))
    return [Heading("Training"), *blocks] if blocks else []


def panels(
    stage: str, title: str, curves: dict[str, Series], wanted: Sequence[tuple[str, str]]
) -> list[Figure]:
    """One figure for each of `wanted` (title, pattern of the metrics' names) that has a metric."""
    figures, shown = [], set()
    for name, pattern in wanted:
        lines = [s for n, s in curves.items() if n not in shown and re.fullmatch(pattern, n)]
        lines = lines[:MAX_LINES]
        shown.update(line.label for line in lines)
        if lines:
            slug = re.sub(r"[^a-z]+", "_", name.lower()).strip("_")
            what = ", ".join(line.label for line in lines)
            figures.append(
                Figure(f"{stage}_{slug}", curve_plot(name, lines), alt=f"{title}: {what} by step")
            )
    return figures


def reading_section(facts: RunFacts, count: int) -> list[Block]:
    """Rollouts and benchmark answers in full: look at them before believing a curve."""
    rolled, answered = rollouts(facts, count), answers(facts, count)
    if not rolled and not answered:
        return []
    blocks: list[Block] = [
        Heading("Read them yourself"),
        Paragraph("Chosen by rule, not by looks: lowest to highest reward, first and last step."),
    ]
    if rolled:
        blocks += [Heading("Rollouts", level=3), *map(_fold, rolled)]
    if answered:
        blocks += [Heading("Answers to the benchmarks", level=3), *map(_fold, answered)]
    return blocks


def _fold(reading: Reading) -> Fold:
    texts = (Verbatim("Question", reading.question), Verbatim("Answer", reading.answer))
    if not reading.checks:
        return Fold(reading.title, texts)
    more = reading.checks_in_all - len(reading.checks)
    table = Table(
        ("Test", "Verdict", "Input", "Expected"),
        tuple(
            (c.name, Cell(c.verdict, c.reason), _value(c.input), _value(c.expected))
            for c in reading.checks
        ),
        caption=f"The first {len(reading.checks)} tests; {more} more." if more > 0 else "",
        prose=frozenset({1, 2, 3}),
    )
    return Fold(reading.title, (*texts, table))


def _value(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_VALUE else f"{line[: LONGEST_VALUE - 1]}…"


def cost_section(facts: RunFacts) -> list[Block]:
    """Seconds of every stage when it was computed; a reused stage cost nothing this time."""
    rows = []
    for o in facts.outputs:
        tokens, money = first(o.metrics, TOKEN_METRICS), first(o.metrics, COST_METRICS)
        rows.append(
            (
                o.stage,
                duration(o.seconds),
                "–" if tokens is None else f"{tokens:,.0f}",
                "–" if money is None else f"{money:,.2f}",
            )
        )
    total = duration(sum(o.seconds for o in facts.outputs))
    return [
        Heading("Cost"),
        Table(
            ("Stage", "Time", "Tokens generated", "Price"),
            (*rows, ("all stages", total, "", "")),
            caption="Wall-clock time of the computation, also for results reused from the store.",
            emphasis=frozenset({len(rows)}),
        ),
    ]


def duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
