"""The report's protocol: how every score was made, field by field."""

from eval.benchmarks import BenchmarkResult, Statement
from eval.page import Block, Heading, Paragraph, Table
from eval.run_facts import Evaluation, RunFacts

BENCHMARK_FIELDS = ("source", "k", "date_from", "date_to")


def protocol_section(facts: RunFacts) -> list[Block]:
    """Every field of every result: what a number needs before it may be compared."""
    evaluations = [e for e in facts.evaluations() if e.results]
    if not evaluations:
        return []
    return [
        Heading("Protocol"),
        Paragraph(
            "How each score was made. Date windows are half-open: date to is the first day "
            "outside. Shares are in [0, 1]; a truncated answer was cut at max tokens and judged as "
            "it stood; pass at k uses all k samples."
        ),
        _statement_table(evaluations),
        _benchmark_table(evaluations),
        _result_table(evaluations),
    ]


def _statement_table(evaluations: list[Evaluation]) -> Table:
    statements = [e.results[0].statement for e in evaluations]
    return Table(
        ("Protocol", *(e.checkpoint for e in evaluations)),
        tuple(
            (_field_title(name), *(_plain(getattr(s, name)) for s in statements))
            for name in Statement.model_fields
        ),
    )


def _benchmark_table(evaluations: list[Evaluation]) -> Table:
    rows = [
        (r.name, *(_plain(getattr(r, n)) for n in BENCHMARK_FIELDS))
        for e in evaluations
        for r in e.results
    ]
    return Table(("Benchmark", *map(_field_title, BENCHMARK_FIELDS)), tuple(dict.fromkeys(rows)))


def _result_table(evaluations: list[Evaluation]) -> Table:
    told = {"name", "statement", *BENCHMARK_FIELDS}
    names = [n for n in BenchmarkResult.model_fields if n not in told]
    rows = [
        (f"{e.checkpoint}: {r.name}", *(_plain(getattr(r, n)) for n in names))
        for e in evaluations
        for r in e.results
    ]
    return Table(("Result", *map(_field_title, names)), tuple(rows))


def _field_title(name: str) -> str:
    return name.replace("_", " ")


def _plain(value: object) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
