"""Which problems a benchmark is, and the statement every score travels with.

Date windows are half-open, [date_from, date_to). LiveCodeBench's v5 is August 2024 to February 2025
(374 problems of release_v6), v6 February to April 2025 (131): the 51 of February are in both, which
results say in `shared`. The paper's Fig. 1 ends v5 at 2025/02/01: 335 problems, or 323.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter

from ...configs.settings.evaluation import BenchmarkProtocol
from ..judge.ends import NO_ANSWERS
from ..programs.lcb_runner import side_by_side
from ..records import Problem, Record, Sample, Score
from .metrics import majority_at_k, summarise


@cache
def errata() -> frozenset[str]:
    """Problems whose published tests are wrong: ids of their statements, and the source's own."""
    with Path(__file__).with_name("errata.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    own = {row["question_id"] for row in rows if not row["question_id"].isdigit()}
    return frozenset(own | {row["problem_id"] for row in rows})


MATH = "Please reason step by step, and put your final answer within \\boxed{}."
STDIN = (
    "Write a Python program that reads its input from standard input and prints the answer to "
    "standard output. Put the whole program into one ```python block."
)
CALL = "Write Python code that defines {name}. Put all of it into one ```python block."


def question(protocol: BenchmarkProtocol, problem: Problem) -> str:
    """The text a model gets: `protocol.question` with {prompt} and {format} filled in."""
    suite = problem.tests
    if problem.domain == "math":
        instruction = MATH
    elif suite is None or suite.kind in ("stdin", "checker"):
        instruction = STDIN
    else:
        name = f"`{suite.fn_name}`" if suite.fn_name else "the function"
        solution = "`class Solution` with the method " if suite.kind == "call" else ""
        instruction = CALL.replace("{name}", solution + name)
    return protocol.question.replace("{format}", instruction).replace("{prompt}", problem.prompt)


class Statement(Record):
    """How the answers of one evaluation were made and judged: the same for all its benchmarks."""

    model: str = ""  # stage, folder name, hub id, or the model's name at an endpoint
    checkpoint: str
    """Content digest of the checkpoint, 16 hex digits; a revision of the hub; or the endpoint."""
    engine: str  # Engine and version, e.g. `vllm 0.31.0`.
    temperature: float
    top_p: float
    top_k: int | None = None
    repetition_penalty: float | None = None
    max_tokens: int
    yarn_factor: float | None
    template: str
    """`template_hash` of the checkpoint; an endpoint applies its own and does not say which."""
    grader_version: int
    sandbox: str
    seed: int
    resamples: int  # bootstrap resamples behind the interval
    not_sent: tuple[str, ...] = ()
    """Parameters that the endpoint does not take: its own values count instead of those here."""
    answered: str = ""
    """When an endpoint first answered under each name and fingerprint that it gave itself."""


class BenchmarkResult(Record):
    """One score of one checkpoint. Shares are in [0, 1]; None: nothing was scored, or, for the
    majority, right answers can differ in form."""

    name: str
    source: str
    k: int
    date_from: str
    date_to: str
    questions: str = ""  # `questions_hash` of what was asked
    shared: dict[str, int] = Field(default_factory=dict)
    """Problems that are also in another benchmark of this evaluation: where, and how many."""
    problems: int  # problems behind the means
    problems_unscored: int
    samples: int  # scored samples
    samples_unscored: int
    truncated: int  # samples cut at max_tokens; they are judged like any other
    out_of_positions: int = 0
    """Of these, the ones cut before max_tokens, where the positions of the model ended."""
    mean_tokens: float
    avg: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None  # 95 % bootstrap interval over problems
    sample_low: float | None = None
    sample_high: float | None = None  # 95 % bootstrap interval over the samples of each problem
    pass_at_k: float | None = None
    majority_at_k: float | None
    official: float | None = None
    """Share of right answers by LiveCodeBench's own runner, where it was asked too."""
    disagreements: int = 0  # answers that only one of the two calls right
    no_answers: dict[str, int] = Field(default_factory=dict)
    """Why answers are unscored, or are none (cut, or reasoning only), and how many."""
    errata: int = 0  # problems whose published tests are known to be wrong; they count
    statement: Statement

    @property
    def truncation_rate(self) -> float:
        return self.truncated / max(1, self.samples + self.samples_unscored)


RESULTS = TypeAdapter(tuple[BenchmarkResult, ...])  # the file `results.json` of an evaluation


def questions_hash(questions: Iterable[str]) -> str:
    """16 hex digits over the questions in order: equal hashes, equal problems in equal words."""
    digest = hashlib.sha256()
    for text in questions:
        digest.update(hashlib.sha256(text.encode("utf-8", "replace")).digest())
    return digest.hexdigest()[:16]


def overlaps(problems: Mapping[str, Sequence[Problem]]) -> dict[str, dict[str, int]]:
    """Benchmark → other benchmark → how many problems they share, where there are any."""
    ids = {name: {p.id for p in chosen} for name, chosen in problems.items()}
    return {
        name: {o: n for o, theirs in ids.items() if o != name and (n := len(own_ids & theirs))}
        for name, own_ids in ids.items()
    }


def in_window(protocol: BenchmarkProtocol, date: str) -> bool:
    """Is the ISO `date` (or date and time) in [date_from, date_to)?"""
    return protocol.date_from <= date[:10] < (protocol.date_to or "9999")


def problems_of(protocol: BenchmarkProtocol, problems: Sequence[Problem]) -> list[Problem]:
    """The problems of one benchmark, each once, in their order. Raises ValueError when there are
    none, or when a window meets a problem without a date."""
    name, source = protocol.name, protocol.source or protocol.name
    first = {p.id: p for p in reversed(problems) if p.source == source}
    chosen = [first[id_] for id_ in dict.fromkeys(p.id for p in problems) if id_ in first]
    if not chosen:
        sources = ", ".join(sorted({p.source for p in problems})) or "none at all"
        has = f"`benchmarks.sources` has: {sources}"
        fix = "name one of them as its `source` in `evaluate.protocols`"
        raise ValueError(f"protocol {name!r} needs problems of source {source!r}, but {has}; {fix}")
    if not (protocol.date_from or protocol.date_to):
        return chosen
    days = sorted((p.date or "")[:10] for p in chosen)
    if not days[0]:
        undated = f"{days.count('')} of its {len(chosen)} problems have none"
        fix = f"but {undated}: set the `date_field` of that source"
        raise ValueError(f"protocol {name!r} cuts source {source!r} by date, {fix}")
    inside = [p for p in chosen if in_window(protocol, p.date or "")]
    if not inside:
        dated = f"is dated in its window; they run from {days[0]} to {days[-1]}"
        raise ValueError(f"protocol {name!r}: no problem of source {source!r} {dated}")
    return inside


def score_benchmark(
    protocol: BenchmarkProtocol, problems: Sequence[Problem],
    samples: Mapping[tuple[str, int], Sample], scores: Mapping[tuple[str, int], Score],
    statement: Statement, shared: Mapping[str, int] | None = None,
    official: Mapping[tuple[str, int], Score] | None = None,
) -> BenchmarkResult:  # fmt: skip
    """One benchmark from answers and verdicts keyed by (problem id, index). A missing answer counts
    as unscored. `shared` is its row of `overlaps`; `official`: verdicts by LiveCodeBench's rules.
    """
    keys = {p.id: [(p.id, i) for i in range(protocol.k)] for p in problems}
    rows = {p: [scores.get(key) for key in row] for p, row in keys.items()}
    outcomes = {p: [s.correct if s else None for s in row] for p, row in rows.items()}
    answers = {p: [s.answer if s else None for s in row] for p, row in rows.items()}
    answered = [samples[key] for row in keys.values() for key in row if key in samples]
    cut = [s for s in answered if s.finish_reason == "length"]
    counted = [s.completion_tokens for s in cut if s.prompt_tokens]  # by model or endpoint
    summary = summarise(outcomes, statement.resamples, statement.seed)
    # A vote needs answers that agree when they are right: not programs, not free expressions.
    votes = summary["problems"] and all(p.domain == "math" and p.numbers is None for p in problems)
    scored = [score for row in rows.values() for score in row if score]
    share, differing = (None, 0) if official is None else side_by_side(scored, official.values())
    return BenchmarkResult(
        name=protocol.name,
        source=protocol.source or protocol.name,
        k=protocol.k,
        date_from=protocol.date_from,
        date_to=protocol.date_to,
        questions=questions_hash(question(protocol, p) for p in problems),
        shared=dict(shared or {}),
        truncated=len(cut),
        out_of_positions=sum(tokens < statement.max_tokens for tokens in counted),
        mean_tokens=sum(s.completion_tokens for s in answered) / max(1, len(answered)),
        majority_at_k=majority_at_k(answers, outcomes) if votes else None,
        official=share,
        disagreements=differing,
        no_answers=dict(Counter(s.reason for s in scored if s.unscored or s.reason in NO_ANSWERS)),
        errata=len({p.id for p in problems} & errata()),
        statement=statement,
        **summary,
    )


def template_hash(checkpoint: Path, kwargs: Mapping[str, Any] | None = None) -> str:
    """16 hex digits of the SHA-256 of a checkpoint's chat template, and its arguments if there are
    any; "none" where it has none."""
    file, config = checkpoint / "chat_template.jinja", checkpoint / "tokenizer_config.json"
    template = file.read_text() if file.exists() else None
    if template is None and config.exists():
        template = json.loads(config.read_text()).get("chat_template")
    digest = hashlib.sha256(str(template).encode()).hexdigest()[:16] if template else "none"
    return f"{digest} {json.dumps(dict(kwargs), sort_keys=True)}" if kwargs else digest
