"""Settings of evaluation and report (§4): benchmarks, their protocols, how answers are drawn."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from configs.base import LATER, Settings
from configs.engines import EngineRuntime, Sampling
from configs.judging import JudgeSettings

LEARNING_CURVE = "logs/learning_curve.jsonl"
"""Where an evaluation draws accuracy over rollout steps."""
_DATE = r"^(\d{4}-\d{2}-\d{2})?$"


class BenchmarkProtocol(Settings):
    """How one benchmark is scored: avg@k over a date window."""

    name: Annotated[str, Field(description="Name in scores and reports")]
    source: Annotated[
        str, Field(description="Source of its problems; empty: the one called `name`")
    ] = ""
    k: Annotated[PositiveInt, Field(description="Samples per problem (avg@k)")] = 64  # §4.1
    question: Annotated[
        str,
        Field(description="What is asked: {prompt} is the problem's, {format} how to answer it"),
    ] = "{prompt}"
    date_from: Annotated[str, Field(pattern=_DATE, description="First day (ISO)")] = ""
    date_to: Annotated[str, Field(pattern=_DATE, description="First day after the window")] = ""

    @field_validator("question")
    @classmethod
    def the_question_holds_the_problem(cls, text: str) -> str:
        if text.count("{prompt}") != 1:
            raise ValueError("question must hold {prompt} once, where the problem goes")
        return text

    official: Annotated[
        bool,
        Field(description="Judge again as LiveCodeBench's runner does, and put both side by side"),
    ] = False

    @model_validator(mode="after")
    def the_window_holds_a_day(self) -> Self:
        if self.date_from and self.date_to and self.date_from >= self.date_to:
            raise ValueError(
                f"protocol {self.name!r}: date_to={self.date_to} is the first day after the "
                f"window, so it must come after date_from={self.date_from}"
            )
        return self


PAPER_PROTOCOLS = (  # §4.1, Table 1
    BenchmarkProtocol(name="aime24"),
    BenchmarkProtocol(name="aime25"),
    BenchmarkProtocol(name="hmmt25"),
    BenchmarkProtocol(
        name="lcb_v5", source="livecodebench", k=8, official=True,
        date_from="2024-08-01", date_to="2025-03-01",
    ),  # by months, as 374 problems of release_v6; February 2025 is in both windows
    BenchmarkProtocol(
        name="lcb_v6", source="livecodebench", k=8, official=True,
        date_from="2025-02-01", date_to="2025-05-01",
    ),
)  # fmt: skip


class LearningCurve(Settings):
    """How the models that RL kept along the way (`keep_every`) are scored."""

    k: Annotated[
        int,
        Field(ge=2, description="Samples per problem (avg@k) of each; halves of them tell noise"),
    ] = 4
    benchmarks: Annotated[
        tuple[str, ...], Field(description="Names of protocols; empty: all of them")
    ] = ()


class EvaluateSettings(Settings):
    """Generation and judging of a checkpoint on the benchmarks (§4)."""

    protocols: Annotated[
        tuple[BenchmarkProtocol, ...], Field(description="The benchmarks and how each is scored")
    ] = PAPER_PROTOCOLS
    sampling: Annotated[Sampling, Field(description="Table 1: T 0.6, top_p 0.95, 32K")] = (
        Sampling()
    )  # Table 1: T 0.6, top_p 0.95, 32K
    yarn_factor: Annotated[
        float | None,
        Field(gt=1, description="2.5 for the 64K budget (§4.3), with sampling.max_tokens=65536"),
    ] = None
    engine: Annotated[
        Literal["vllm", "transformers"], Field(description="Who generates the answers")
    ] = "vllm"
    judge: Annotated[JudgeSettings, Field(description="How answers become rewards")] = (
        JudgeSettings()
    )
    learning_curve: Annotated[
        LearningCurve | None,
        LATER,
        Field(description="Scores of the models that RL kept along the way; empty: leave them"),
    ] = None
    bootstrap: Annotated[PositiveInt, Field(description="Resamples behind each interval")] = 1_000
    seed: Annotated[int, Field(description="Part of the protocol, not of the run")] = 1234
    engine_runtime: Annotated[
        EngineRuntime, Field(description="How answers are generated; changes no result")
    ] = EngineRuntime()

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        names = [p.name for p in self.protocols]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"two protocols are called {twice[0]!r}; names must be unique")
        asked = self.learning_curve.benchmarks if self.learning_curve else ()
        if unknown := [n for n in asked if n not in names]:
            raise ValueError(
                f"learning_curve.benchmarks: no protocol is called {unknown[0]!r} "
                f"(protocols: {', '.join(names)})"
            )
        for p in along.protocols if (along := self.along_the_way()) else ():
            whole = next(other.k for other in self.protocols if other.name == p.name)
            if p.k > whole:
                raise ValueError(
                    f"learning_curve.k={p.k} is more than protocol {p.name!r} asks of the last "
                    f"model (k={whole}): the curve compares equally many answers"
                )
        return self

    def along_the_way(self) -> Self | None:
        """The protocols of the learning curve; None without one."""
        curve = self.learning_curve
        if curve is None:
            return None
        chosen = tuple(
            p.model_copy(update={"k": curve.k, "official": False})
            for p in self.protocols
            if not curve.benchmarks or p.name in curve.benchmarks
        )
        return self.model_copy(update={"protocols": chosen, "learning_curve": None})


class ReportSettings(Settings):
    """The page a run ends with."""

    profile: Annotated[
        str, Field(description="Label of every figure; anything but `paper` is marked as such")
    ] = ""
    rollouts_to_read: Annotated[int, Field(ge=0, description="Examples printed in the report")] = 6
