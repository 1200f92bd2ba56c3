"""Which problems a benchmark is, and the statement every score travels with.

Date windows are half-open, [date_from, date_to): the paper's LiveCodeBench ranges (v5: 2024-08-01
to 2025-02-01, v6: 2025-02-01 to 2025-05-01) share 2025-02-01, a contest day with 12 problems, and
a problem may count once only. Counted to v6, release_v6 has the 131 problems others report there.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from configs.training_stages import BenchmarkProtocol
from eval.metrics import majority_at_k, summarise
from eval.records import Problem, Record, Sample, Score

GRADER_VERSION = 1
"""Raised when the judge changes its mind about any answer; two versions do not compare."""
PROBE = [{"role": "user", "content": "What is 1 + 1?"}]
NO_TEMPLATE = "none"


class Statement(Record):
    """How the answers of one evaluation were made and judged: the same for all its benchmarks."""

    checkpoint: str
    """Content digest of the checkpoint, 16 hex digits."""
    engine: str
    """Engine and version, e.g. `vllm 0.31.0`."""
    temperature: float
    top_p: float
    max_tokens: int
    yarn_factor: float | None
    template: str
    """`template_hash` of the checkpoint."""
    grader_version: int
    sandbox: str
    seed: int
    resamples: int
    """Bootstrap resamples behind the interval."""


class BenchmarkResult(Record):
    """One score of one checkpoint, with everything needed to compare it with another.

    Shares are in [0, 1]; None means that nothing was scored, or, for
    the majority, that right answers can differ in form (programs, made targets).
    """

    name: str
    source: str
    k: int
    date_from: str
    date_to: str
    problems: int
    """Problems behind the means."""
    problems_unscored: int
    samples: int
    """Scored samples."""
    samples_unscored: int
    truncated: int
    """Samples cut at max_tokens; they are judged like any other."""
    mean_tokens: float
    avg: float | None
    ci_low: float | None
    ci_high: float | None
    """95 % bootstrap interval over problems."""
    pass_at_k: float | None
    majority_at_k: float | None
    statement: Statement


def in_window(protocol: BenchmarkProtocol, date: str) -> bool:
    """Is the ISO `date` (or date and time) in [date_from, date_to)?"""
    day = date[:10]
    return (not protocol.date_from or day >= protocol.date_from) and (
        not protocol.date_to or day < protocol.date_to
    )


def problems_of(protocol: BenchmarkProtocol, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of one benchmark, each once, in their order.

    Raises ValueError when there are none, or when a window meets a problem without a date.
    """
    everything = list(problems)
    source = protocol.source or protocol.name
    of_source = {p.id: p for p in reversed(everything) if p.source == source}
    found = [of_source[i] for i in dict.fromkeys(p.id for p in everything) if i in of_source]
    if not found:
        known = ", ".join(sorted({p.source for p in everything})) or "none at all"
        raise ValueError(
            f"protocol {protocol.name!r} needs problems of source {source!r}, but the benchmarks "
            f"have: {known}. Add a source called {source!r} to `benchmarks.sources`, or set the "
            f"`source` of the protocol in `evaluate.protocols` to one of these"
        )
    if not (protocol.date_from or protocol.date_to):
        return found
    undated = [p.id for p in found if not p.date]
    if undated:
        raise ValueError(
            f"protocol {protocol.name!r} cuts source {source!r} by date, but {len(undated)} of its "
            f"{len(found)} problems have none (first: {undated[0]}). Set `date_field` of that "
            f"source in `benchmarks.sources`, or drop date_from and date_to of the protocol"
        )
    inside = [p for p in found if in_window(protocol, p.date or "")]
    if not inside:
        days = sorted((p.date or "")[:10] for p in found)
        raise ValueError(
            f"protocol {protocol.name!r}: no problem of source {source!r} is dated in "
            f"[{protocol.date_from or '...'}, {protocol.date_to or '...'}); they run from "
            f"{days[0]} to {days[-1]}. Change the window in `evaluate.protocols`, or the source"
        )
    return inside


class _PlainGeneration(Extension):
    """`{% generation %}` of training templates marks assistant tokens; it prints its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _template_text(checkpoint: Path) -> str | None:
    if (checkpoint / "chat_template.jinja").exists():
        return (checkpoint / "chat_template.jinja").read_text()
    config = checkpoint / "tokenizer_config.json"
    template = json.loads(config.read_text()).get("chat_template") if config.exists() else None
    if isinstance(template, list):  # several named templates
        template = next((t["template"] for t in template if t["name"] == "default"), None)
    return template


def template_hash(checkpoint: Path) -> str:
    """16 hex digits of the SHA-256 of the chat template applied to `PROBE`.

    Two checkpoints with equal hashes were asked in the same words, however their templates are
    written; "none" when the folder has no chat template. A template that cannot be rendered
    outside of its tokenizer is hashed as text.
    """
    template = _template_text(checkpoint)
    if template is None:
        return NO_TEMPLATE
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _PlainGeneration]
    )
    environment.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    try:
        text = environment.from_string(template).render(
            messages=PROBE,
            add_generation_prompt=True,
            tools=None,
            bos_token="<s>",
            eos_token="</s>",
        )
    except TemplateError:
        text = template
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def score_benchmark(
    protocol: BenchmarkProtocol,
    problems: Sequence[Problem],
    samples: Mapping[tuple[str, int], Sample],
    scores: Mapping[tuple[str, int], Score],
    statement: Statement,
) -> BenchmarkResult:
    """Put one benchmark together from answers and verdicts keyed by (problem id, index).

    An answer that is missing counts as unscored, like one whose judging failed.
    """
    keys = {p.id: [(p.id, i) for i in range(protocol.k)] for p in problems}
    rows = {p: [scores.get(key) for key in row] for p, row in keys.items()}
    outcomes = {p: [s.correct if s else None for s in row] for p, row in rows.items()}
    answers = {p: [s.answer if s else None for s in row] for p, row in rows.items()}
    answered = [samples[key] for row in keys.values() for key in row if key in samples]
    summary = summarise(outcomes, protocol.k, statement.resamples, statement.seed)
    scored = summary.problems > 0
    # A vote needs answers that agree when they are right: not programs, not free expressions.
    one_answer = all(p.domain == "math" and p.numbers is None for p in problems)
    return BenchmarkResult(
        name=protocol.name,
        source=protocol.source or protocol.name,
        k=protocol.k,
        date_from=protocol.date_from,
        date_to=protocol.date_to,
        problems=summary.problems,
        problems_unscored=summary.problems_unscored,
        samples=summary.samples,
        samples_unscored=summary.samples_unscored,
        truncated=sum(s.finish_reason == "length" for s in answered),
        mean_tokens=sum(s.completion_tokens for s in answered) / max(1, len(answered)),
        avg=summary.avg if scored else None,
        ci_low=summary.ci_low if scored else None,
        ci_high=summary.ci_high if scored else None,
        pass_at_k=summary.pass_at_k if scored else None,
        majority_at_k=majority_at_k(answers, outcomes) if scored and one_answer else None,
        statement=statement,
    )
