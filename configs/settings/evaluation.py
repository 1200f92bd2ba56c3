"""Settings of evaluation and report, and the benchmarks that `klear eval` knows by name. Models of
others are asked with an instruction, as for DeepSeek-R1; our own learn from bare problems."""

from datetime import date
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from .base import ChatTemplateKwargs, Settings, read_catalogue
from .engines import EngineRuntime, EngineSettings, Sampling
from .judging import JudgeSettings

LEARNING_CURVE = "logs/learning_curve.jsonl"
"""Where an evaluation draws accuracy over rollout steps."""


class BenchmarkProtocol(Settings):
    """How one benchmark is scored: avg@k over a date window."""

    name: str
    """Name in scores and reports"""
    source: str = ""
    """Source of its problems; empty: the one called `name`"""
    k: PositiveInt = 64
    """Samples per problem (avg@k); §4.1: 64"""
    question: str = "{prompt}"
    """What is asked: {prompt} is the problem's, {format} how to answer it"""
    date_from: str = ""
    """First day (ISO)"""
    date_to: str = ""
    """First day after the window"""
    official: bool = False
    """Judge again as LiveCodeBench's runner does, and put both side by side"""

    @model_validator(mode="after")
    def it_asks_something(self) -> Self:
        if self.question.count("{prompt}") != 1:
            raise ValueError("question must hold {prompt} once, where the problem goes")
        for day in filter(None, (self.date_from, self.date_to)):  # compared as texts
            if str(date.fromisoformat(day)) != day:
                raise ValueError(f"{day} must be written like 2025-02-28")
        if self.date_from and self.date_to and self.date_from >= self.date_to:
            raise ValueError(f"date_to={self.date_to} must come after date_from={self.date_from}")
        return self


PAPER_PROTOCOLS = tuple(
    BenchmarkProtocol(name=name, **protocol)
    for name, protocol in read_catalogue("benchmarks")["paper"].items()
)


class LearningCurve(Settings):
    """How the models that RL kept along the way (`keep_every`) are scored."""

    k: Annotated[int, Field(ge=2)] = 4
    """Samples per problem (avg@k) of each; halves of them tell noise"""
    benchmarks: tuple[str, ...] = ()
    """Names of protocols; empty: all of them"""


class EvaluateSettings(Settings):
    """Generation and judging of a checkpoint on the benchmarks (§4)."""

    protocols: tuple[BenchmarkProtocol, ...] = PAPER_PROTOCOLS
    """The benchmarks and how each is scored"""
    sampling: Sampling = Sampling()
    """Table 1: T 0.6, top_p 0.95, 32K"""
    yarn_factor: Annotated[float, Field(gt=1)] | None = None
    """2.5 for the 64K budget (§4.3), with sampling.max_tokens=65536"""
    chat_template_kwargs: ChatTemplateKwargs = None
    """Arguments of the chat template; empty: those of the checkpoint"""
    engine: Literal["vllm", "transformers"] = "vllm"
    """Who generates the answers"""
    judge: JudgeSettings = JudgeSettings()
    """How answers become rewards"""
    learning_curve: LearningCurve | None = None
    """Scores of the models that RL kept along the way; empty: leave them"""
    engine_runtime: EngineRuntime = EngineRuntime()

    bootstrap: ClassVar = 1_000  # resamples behind each interval
    seed: ClassVar = 1234  # part of the protocol, not of the run

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        k = {p.name: p.k for p in self.protocols}
        if len(k) < len(self.protocols):
            raise ValueError("two protocols have one name; names must be unique")
        benchmarks = self.learning_curve.benchmarks if self.learning_curve else ()
        if unknown := [n for n in benchmarks if n not in k]:
            none = f"no protocol is called {unknown[0]!r} (protocols: {', '.join(k)})"
            raise ValueError(f"learning_curve.benchmarks: {none}")
        for p in along.protocols if (along := self.along_the_way()) else ():
            if p.k > k[p.name]:
                most = f"protocol {p.name!r} asks of the last model (k={k[p.name]})"
                raise ValueError(f"learning_curve.k={p.k} is more than {most}")
        return self

    def along_the_way(self) -> Self | None:
        """The protocols of the learning curve; None without one."""
        curve = self.learning_curve
        if curve is None:
            return None
        names = curve.benchmarks or [p.name for p in self.protocols]
        changes = {"k": curve.k, "official": False}
        chosen = (p.model_copy(update=changes) for p in self.protocols if p.name in names)
        return self.model_copy(update={"protocols": tuple(chosen), "learning_curve": None})


class ReportSettings(Settings):
    """The page a run ends with."""

    profile: str = ""
    """Label of every figure; anything but `paper` is marked as such"""


WITH_FORMAT = "{prompt}\n\n{format}"


def named_protocols() -> dict[str, BenchmarkProtocol]:
    """Benchmark name → its protocol, the question with the instruction."""
    return {
        name: BenchmarkProtocol(
            **{"name": name, "source": name, "question": WITH_FORMAT, **protocol}
        )
        for group in read_catalogue("benchmarks").values()
        for name, protocol in group.items()
    }


class Evaluation(Settings):
    """One `klear eval`: who answers what, under which protocol."""

    engine: EngineSettings
    evaluate: EvaluateSettings
    limit: PositiveInt | None = None
    """The first N problems of each source"""
    model: str = ""
    """What results call it"""
    checkpoint: str = ""
    """Digest of the folder, commit on the hub, or address of the endpoint"""
    template: str = ""
    """`template_hash` of its chat template"""

    @model_validator(mode="after")
    def the_engine_is_said_once(self) -> Self:
        unread = {"engine", "engine_runtime", "yarn_factor", "learning_curve"}
        unread.add("chat_template_kwargs")
        if unread_keys := sorted(unread & self.evaluate.model_fields_set):
            raise ValueError(f"evaluate.{unread_keys[0]} is not read here: see engine")
        return self
