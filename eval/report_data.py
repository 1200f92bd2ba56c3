"""The report's data sections: the funnel, verdicts, overlaps with benchmarks, judge agreement."""

from eval.agreement import Agreement
from eval.page import Block, Cell, Figure, Figures, Fold, Heading, Paragraph, Table, Verbatim
from eval.plots import Bar, funnel_plot
from eval.run_facts import Filtered, RunFacts
from eval.run_readings import overlaps

TOP_REASONS = 3


def funnel_section(facts: RunFacts) -> list[Block]:
    """Rows in, kept and rejected by stage, with the commonest reasons."""
    filters = facts.filters()
    if not filters:
        return []
    bars = [Bar(f.stage, f.kept, f.rejected) for f in filters if not f.answers]
    figure = Figure("funnel", funnel_plot(bars), alt="Rows kept and rejected by stage")
    return [
        Heading("Data"),
        Paragraph("Every row a stage dropped is in its rejected.parquet with a reason."),
        *([Figures((figure,))] if bars else []),
        Table(
            ("Stage", "Rows in", "Kept", "Rejected", "Most frequent reasons"),
            tuple(_funnel_row(f) for f in filters),
            caption="“…” stands for the row's own details. Rows are problems; those that select "
            "filters and that distill, rate and sample keep are answers.",
            prose=frozenset({4}),
        ),
        *_verdict_table(facts),
    ]


def _funnel_row(f: Filtered) -> tuple[str, ...]:
    reasons = "; ".join(f"{reason} ({count:,})" for reason, count in f.reasons[:TOP_REASONS])
    more = len(f.reasons) - TOP_REASONS
    if more > 0:
        reasons += f"; {more} more"
    rows_in = "–" if f.answers else f"{f.kept + f.rejected:,}"
    return f.stage, rows_in, f"{f.kept:,}", f"{f.rejected:,}", reasons or "–"


def _verdict_table(facts: RunFacts) -> list[Block]:
    verdicts = facts.verdicts()
    if not verdicts:
        return []
    rows = []
    for v in verdicts:
        scored = v.answers - v.unscored
        right = f"{100 * v.right / scored:.1f} %" if scored else "–"
        counts = ", ".join(f"{name} {count:,}" for name, count in v.by_verdict)
        rows.append((v.stage, f"{v.answers:,}", right, f"{v.unscored:,}", counts))
    return [
        Heading("What the judge said of the teachers", level=3),
        Table(
            ("Answers of", "Answers", "Right", "Unscored", "Verdicts"),
            tuple(rows),
            caption="AC right, WA wrong, TLE/MLE/OLE over a limit, RE/CE the program failed, "
            "IE unscored. Right: share of scored answers.",
            prose=frozenset({4}),
        ),
    ]


def contamination_section(facts: RunFacts) -> list[Block]:
    """Both readings of the overlap rule, and three hits from sure to doubtful."""
    found = overlaps(facts)
    if found is None:
        return []
    blocks: list[Block] = [
        Heading("Contamination"),
        Paragraph(
            "The published rule removes a row that shares any n-gram with a benchmark item. Most "
            "such rows share common wording only; the larger the share of the item's n-grams, the "
            "surer it is the same problem."
        ),
        Table(
            ("Rows that share", "Rows"),
            (
                ("any n-gram (the published rule)", f"{found.any_ngram:,}"),
                *(
                    (f"at least {100 * level:.0f} % of an item's n-grams", f"{rows:,}")
                    for level, rows in found.by_coverage
                ),
            ),
        ),
    ]
    for hit in found.examples:
        summary = f"{hit.benchmark}: {100 * hit.coverage:.0f} % of the item shared, “{hit.ngram}”"
        pair = (Verbatim("Training prompt", hit.row), Verbatim("Benchmark item", hit.item))
        blocks.append(Fold(summary, pair))
    return blocks


def agreement_section(facts: RunFacts) -> list[Block]:
    """Judge against published grades: the share, and every single disagreement."""
    agreements = facts.agreements()
    if not agreements:
        return []
    blocks: list[Block] = [
        Heading("Judge against published grades"),
        Table(
            ("Answers of", "Compared", "Agree", "Both right", "Both wrong", "Only ours right",
             "Only published right", "Unscored by us", "Without a grade"),
            tuple(_agreement_row(stage, a) for stage, a in agreements),
            caption="Agreement with its 95 % Wilson interval.",
        ),
    ]  # fmt: skip
    for stage, agreement in agreements:
        blocks += [_disagreements(stage, agreement)] if agreement.disagreements else []
    return blocks


def _agreement_row(stage: str, a: Agreement) -> tuple[str | Cell, ...]:
    low, high = a.interval
    share = (
        Cell("–")
        if a.share is None
        else Cell(f"{100 * a.share:.1f} %", f"[{100 * low:.1f}, {100 * high:.1f}]")
    )
    counts = (a.both_right, a.both_wrong, a.only_ours, a.only_published, a.unscored, a.ungraded)
    return stage, f"{a.compared:,}", share, *(f"{n:,}" for n in counts)


def _disagreements(stage: str, agreement: Agreement) -> Fold:
    blocks: list[Block] = []
    for d in agreement.disagreements:
        said = f"published {_word(d.published)}, ours {_word(d.ours)} ({d.verdict})"
        inside: list[Block] = [
            Table(
                ("Gold answer", "Extracted", "Reason"),
                ((d.gold or "–", d.extracted or "–", d.reason or "–"),),
                prose=frozenset({1, 2}),
            ),
            Verbatim("Question", d.prompt),
            Verbatim("End of the answer", d.tail),
        ]
        blocks.append(Fold(f"{d.model}, {d.problem_id} #{d.index}: {said}", tuple(inside)))
    return Fold(f"Every disagreement on {stage} ({len(blocks)})", tuple(blocks), is_open=True)


def _word(correct: bool) -> str:
    return "right" if correct else "wrong"
