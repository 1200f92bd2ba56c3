"""What `klear eval` prints: one row a benchmark, and below it all that makes the row repeatable."""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TextIO

from eval.benchmarks import BenchmarkResult, Statement
from eval.leaderboard import leaderboard
from eval.metrics import upper_bound_of_zero
from eval.page import Page, Verbatim
from eval.page_html import to_html
from eval.paper_table import COLUMNS as PAPER_COLUMNS
from eval.run_facts import Evaluation

COLUMNS = ("benchmark", "k", "avg@k", "over problems", "over samples", "pass@k", "maj@k",
           "problems", "cut", "tokens", "unscored")  # fmt: skip


def print_results(
    results: Sequence[BenchmarkResult], costs: Mapping[str, float], to: TextIO
) -> None:
    """Shares in percent with 95 % intervals; then the protocol, windows and overlaps."""
    rows = [COLUMNS, *map(_row, results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        cells = (c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths)))  # noqa: B905
        print("  ".join(cells).rstrip(), file=to)
    print("", file=to)
    lines = [*protocol_lines(results[0].statement), *map(_about, results)]
    for line in [*lines, _costs(costs)] if costs else lines:
        print(line, file=to)


def leaderboard_page(results: Sequence[BenchmarkResult]) -> str | None:
    """These scores beside the paper's Table 1, as HTML; None when it has none of the benchmarks."""
    if not {r.name for r in results} & {c.name for c in PAPER_COLUMNS}:
        return None
    model = results[0].statement.model
    printed = StringIO()
    print_results(results, {}, printed)
    blocks = (*leaderboard([(model, Evaluation(model, tuple(results)))]),
              Verbatim("Protocol", printed.getvalue()))  # fmt: skip
    return to_html(Page("Leaderboard", f"{model} beside Table 1 of the paper", "", blocks))


def _row(r: BenchmarkResult) -> tuple[str, ...]:
    return (
        r.name,
        str(r.k),
        _percent(r.avg),
        _interval(r.ci_low, r.ci_high),
        _interval(r.sample_low, r.sample_high),
        _percent(r.pass_at_k),
        _percent(r.majority_at_k),
        str(r.problems),
        f"{100 * r.truncation_rate:.1f} %",
        f"{r.mean_tokens:,.0f}",
        str(r.samples_unscored),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"


def protocol_lines(s: Statement) -> list[str]:
    """The statement in words; an option that is off is named as off."""
    off = {n: "off" if (v := getattr(s, n)) is None else f"{v:g}" for n in
           ("top_k", "repetition_penalty", "yarn_factor")}  # fmt: skip
    return [
        f"model: {s.model} ({s.checkpoint}), {s.engine}, chat template {s.template}",
        f"sampling: temperature {s.temperature:g}, top_p {s.top_p:g}, top_k {off['top_k']}, "
        f"repetition penalty {off['repetition_penalty']}, at most {s.max_tokens} tokens, YaRN "
        f"{off['yarn_factor']}, seed {s.seed}",
        f"judge: grader version {s.grader_version}, sandbox {s.sandbox}; intervals: 95 %, "
        f"{s.resamples} resamples",
    ]


def _about(r: BenchmarkResult) -> str:
    window = f", dated {r.date_from or '…'} to {r.date_to or '…'} (exclusive)" if (
        r.date_from or r.date_to) else ""  # fmt: skip
    shared = "".join(f"; {n} of its problems are also in {name}" for name, n in r.shared.items())
    none = ""
    if r.avg == 0:  # its interval has no width and says too much
        bound = 100 * upper_bound_of_zero(r.problems)
        none = f"; none solved, so up to {bound:.0f} % of such problems may be within reach (95 %)"
    lcb = ""
    if r.official is not None:
        lcb = (
            f"; LiveCodeBench's own runner gives {100 * r.official:.1f} % "
            f"({r.disagreements} disagreements, {r.errata} problems with known wrong tests)"
        )
    return f"{r.name}: problems of {r.source}{window}, questions {r.questions}{shared}{lcb}{none}"


def _costs(costs: Mapping[str, float]) -> str:
    parts = [f"{costs.get('completion_tokens', 0):,.0f} tokens"]
    if "tokens_per_second" in costs:
        parts.append(f"{costs['tokens_per_second']:,.0f} tok/s")
    if "cost" in costs:
        parts.append(f"cost {costs['cost']:,.2f}")
    return "generated: " + ", ".join(parts)
