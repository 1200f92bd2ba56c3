"""The report's protocol: how every score was made, field by field."""

from eval.benchmarks import BenchmarkResult, Statement
from eval.page import Block, Heading, Paragraph, Table
from eval.run_facts import Evaluation, RunFacts

BENCHMARK_FIELDS = ("source", "k", "date_from", "date_to", "questions", "shared")
OFF = ("top_k", "repetition_penalty", "yarn_factor")
"""Options that a reader must know to be off, not only unmentioned."""


def protocol_section(facts: RunFacts) -> list[Block]:
    """Every field of every result: what a number needs before it may be compared."""
    evaluations = [e for e in facts.evaluations() if e.results]
    if not evaluations:
        return []
    return [
        Heading("Protocol"),
        Paragraph(
            "How each score was made. Date windows are half-open: date to is the first day "
            "outside; shared counts the problems that two benchmarks have in common. Questions and "
            "template are hashes: equal ones mean equal problems, asked in equal words. Shares are "
            "in [0, 1]; ci is the interval over problems, sample low and high that over samples; a "
            "truncated answer was cut at max tokens and judged as it stood; pass at k uses all k "
            "samples. Official is the share that LiveCodeBench's own runner calls right, and "
            "disagreements are the answers that only one of the two does; errata are problems "
            "whose published tests are known to be wrong, and they count."
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
            (_field_title(name), *(_option(name, getattr(s, name)) for s in statements))
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


def _option(name: str, value: object) -> str:
    return "off" if name in OFF and value is None else _plain(value)


def _plain(value: object) -> str:
    if value is None or value in ("", {}):
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{n} with {name}" for name, n in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
