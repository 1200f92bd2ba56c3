"""One page about all experiments: the paper's claims with its figures, ours, and verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass

from configs.ablation import Ablation
from eval.ablation_claims import NOT_RUN, Compared, claim_table, compared, papers
from eval.ablation_outcome import Finding, Outcome
from eval.ablation_page import verdict_cell
from eval.page import Block, Cell, Heading, Notice, Page, Paragraph, Table
from eval.report_training import duration

_HOW = (
    "Points are differences of avg@k between two arms, paired by seed, on the benchmark that "
    "decides. The interval (95 %) holds both Student's and a bootstrap, each over seeds and over "
    "problems. Confirmed: it lies above zero; reversed: below; not seen: neither, which with few "
    "seeds may hide a large effect: look at its width, and at the seeds that the arm won. A claim "
    "with several contrasts is confirmed when all of them are; contrasts outside the claim, which "
    "are called higher or lower, do not count. The number of contrasts is not corrected for: where "
    "there is nothing to see, at most about one in forty is called confirmed, and as many "
    "reversed. The score is that of the last checkpoint; steadier means that accuracy fell less, "
    "in sum, between models kept along the way, with Student's interval over seeds alone; falls "
    "that one half of the answers shows are measured on the other, so that noise adds nothing in "
    "the mean. A verdict says nothing of the parts of a claim that are named as not tested. The "
    "paper's figures are single runs of a model of 8B parameters on other benchmarks."
)


@dataclass(frozen=True)
class Cost:
    """What computing some stages took; a stage that several experiments share counts once."""

    stages: int
    seconds: float
    """Sum of the stages' own times, by the clock."""
    cpu_seconds: float


@dataclass(frozen=True)
class Experiment:
    """One experiment and what is known of it at one scale."""

    spec: Ablation
    outcome: Outcome | None = None
    cost: Cost | None = None
    made: str = ""
    """When, at which commit and with which judge: `Finished.made`."""


def results_page(profile: str, experiments: Sequence[Experiment], cost: Cost) -> Page:
    """The table of claims, then every experiment with its command, scores and effects."""
    done = [e for e in experiments if e.outcome]
    rows = [row for e in experiments for row in compared(e.spec, e.outcome, profile)]
    blocks: list[Block] = [
        Notice(
            f"{profile} profile",
            "Each experiment says below what it is evidence for. Written by klear ablate --results "
            "from the results in the store and in RESULTS.jsonl.",
        ),
        Heading("The claims"),
        claim_table(rows),
        Paragraph(_HOW),
        Paragraph(
            f"{len(done)} of {len(experiments)} experiments have run: {cost.stages:,} stages, "
            f"{duration(cost.seconds)} of stage time and {cost.cpu_seconds / 3600:.1f} CPU-core "
            "hours in all, shared stages counted once."
        ),
        Heading("The contrasts"),
        _contrasts(profile, rows),
        *(block for e in experiments for block in _experiment(profile, e)),
    ]
    return Page(
        title="Results of the ablations",
        subtitle="Tables 2 to 6 and Figures 2 to 5 of Klear-Reasoner (arXiv 2508.07629), repeated",
        label=f"{profile} profile",
        blocks=tuple(blocks),
    )


def _contrasts(profile: str, rows: Sequence[Compared]) -> Table:
    lines: list[tuple[str | Cell, ...]] = []
    for spec, contrast, other, found in rows:
        name, paper = contrast.against(other), papers(spec, contrast, other)
        benchmark = spec.scale(profile).benchmarks[0]
        ours = _ours(found, contrast.part_of_claim)
        lines.append((spec.shows, contrast.says, name, paper, benchmark, *ours))
    columns = ("", "the paper says", "contrast", "paper, points", "our benchmark", *_OURS)
    return Table(columns, tuple(lines), prose=frozenset({1, 2, 3, 4}))


_OURS = ("ours, points", "interval, points", "wins", "verdict")


def _ours(found: Finding | None, part_of_claim: bool) -> tuple[str | Cell, ...]:
    if found is None:
        return "–", "–", "–", verdict_cell(NOT_RUN, part_of_claim)
    return (
        f"{found.points:+.1f}",
        f"{found.low:+.1f} to {found.high:+.1f}",
        f"{found.wins} of {found.seeds}",
        verdict_cell(found.verdict, part_of_claim),
    )


def _experiment(profile: str, e: Experiment) -> list[Block]:
    scale, outcome = e.spec.scale(profile), e.outcome
    seeds = outcome.seeds if outcome else e.spec.seeds
    command = f"klear ablate {e.spec.name} --profile {profile} --seeds {seeds}"
    untested = f" Not tested: {e.spec.untested}." if e.spec.untested else ""
    blocks: list[Block] = [Heading(f"{e.spec.shows}: {e.spec.title}")]
    if outcome is None:
        told = f"{NOT_RUN.capitalize()}: {command}. {scale.evidence}{untested}"
        return [*blocks, Paragraph(told)]
    took = ""
    if e.cost:
        took = (f" {e.cost.stages} stages, {duration(e.cost.seconds)} of stage time, "
                f"{duration(e.cost.cpu_seconds)} of CPU time.")  # fmt: skip
    return [
        *blocks,
        Paragraph(f"{command}. Run {e.made}.{took} {scale.evidence}{untested}"),
        _scores(e.spec, scale.benchmarks, outcome),
        *_learning(e.spec, profile, outcome),
        *_others(e.spec, scale.benchmarks[1:], outcome),
    ]


def _scores(spec: Ablation, benchmarks: Sequence[str], outcome: Outcome) -> Table:
    by = {(s.arm, s.benchmark): s for s in outcome.scores}
    clipped = outcome.clipped
    rows: list[tuple[str | Cell, ...]] = []
    for arm in spec.arms:
        row: list[str | Cell] = [arm.name]
        for benchmark in benchmarks:
            s = by.get((arm.name, benchmark))
            spread = f"({s.lowest:.1f} to {s.highest:.1f})" if s else ""
            row.append(Cell(f"{s.mean:.1f}", spread) if s else "–")
        if clipped:
            shares = clipped.get(arm.name)
            row.append(f"{100 * shares['tokens']:.2f}" if shares else "–")
            row.append(f"{100 * shares['gradient']:.1f}" if shares else "–")
        rows.append(tuple(row))
    more = ("tokens clipped, %", "their gradient, %") if clipped else ()
    return Table(("arm", *(f"{b}, %" for b in benchmarks), *more), tuple(rows))


def _learning(spec: Ablation, profile: str, outcome: Outcome) -> list[Block]:
    """Accuracy over training, and how far it fell on its way."""
    steps = sorted({step for curve in outcome.learning.values() for step in curve})
    if not steps:
        return []
    rows = tuple(
        (arm.name, *(f"{curve[s]:.1f}" if s in curve else "–" for s in steps),
         f"{outcome.falls[arm.name]:.1f}")
        for arm in spec.arms
        if (curve := outcome.learning.get(arm.name))
    )  # fmt: skip
    asked = spec.settings(profile, spec.arms[0].name, 0).evaluate.learning_curve
    assert asked is not None  # only an outcome of these settings is shown
    text = (
        f"{spec.scale(profile).benchmarks[0]} over training, avg@{asked.k} in %: "
        "mean over seeds after each rollout step, and the sum of its falls beyond noise, points."
    )
    return [Paragraph(text), Table(("arm", *(f"step {s}" for s in steps), "falls"), rows)]


def _others(spec: Ablation, benchmarks: Sequence[str], outcome: Outcome) -> list[Block]:
    """Effects on the benchmarks that do not decide."""
    by = {(c.better, other, c.measure): c for c in spec.contrasts for other in c.than}
    found = [(f, by.get((f.better, f.than, f.measure))) for f in outcome.findings]
    rows = tuple(
        (contrast.against(f.than), f.benchmark, *_ours(f, contrast.part_of_claim))
        for f, contrast in found
        if contrast and f.benchmark in benchmarks
    )
    columns = ("contrast", "benchmark", *_OURS)
    return [Table(columns, rows, prose=frozenset({1}))] if rows else []
