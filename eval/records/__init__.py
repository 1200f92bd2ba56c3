"""The vocabulary: a Problem is answered by a Sample, which the judge turns into a Score. Records
are frozen and forbid unknown keys. Nothing here imports anything else of `eval`."""

from .problem import (
    HIGHEST_LIMIT,
    NO_GOLD,
    AssertCase,
    CallCase,
    CheckerCase,
    Domain,
    Problem,
    Record,
    Rejected,
    StdinCase,
    TestSuite,
    any_of,
    golds_of,
    normalise_prompt,
    problem_id,
)
from .sample import Count, Example, FinishReason, PublishedRate, Sample, Trace
from .score import Judgement, Score, Verdict
