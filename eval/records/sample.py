"""Answers to a problem: from a model, published with the problem, or kept to learn from."""

from typing import Annotated, Literal

from pydantic import Field

from .problem import Domain, Record

FinishReason = Literal["stop", "length", "empty", "refused", "error"]
Count = Annotated[int, Field(ge=0)]


class Sample(Record):
    """One answer of one model to one problem; `text` is all that the judge sees."""

    problem_id: str
    index: Count
    model: str
    text: str
    finish_reason: FinishReason = "stop"
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class Trace(Record):
    """A published answer that came with a row of a source."""

    problem_id: str = ""
    source: str
    model: str
    text: str


class PublishedRate(Record):
    """The share of somebody's answers that passed, as a row of a source tells it."""

    problem_id: str = ""
    source: str
    model: str
    rate: Annotated[float, Field(ge=0, le=1)]
    answers: Annotated[int, Field(ge=1)] = 1  # 1 also where the row does not say how many.


class Example(Record):
    """One SFT pair: the teacher's answer `response` to `prompt` (§3.1)."""

    problem_id: str
    index: int
    domain: Domain
    source: str
    prompt: str
    response: str
    correct: bool | None = None
