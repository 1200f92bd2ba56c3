"""Settings of the judge, which the filters, the RL reward and the benchmarks share."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from configs.base import Runtime, Settings


class JudgeRuntime(Runtime):
    workers: Annotated[int, Field(ge=0, title="Judge workers (0 = one per core)")] = 0


class RewardSettings(Settings):
    """How a verdict becomes a reward (§3.2.4)."""

    math_correct: float = 1.0
    math_wrong: float = -1.0
    code: Annotated[
        Literal["soft", "hard"],
        Field(title="Code reward", description="soft: share of tests passed; hard: all or nothing"),
    ] = "soft"
    unclosed_think: Annotated[
        float,
        Field(description="Reward of a math answer without one closed <think> block (§3.2.4)"),
    ] = -1.0
    code_unclosed_think: Annotated[
        float,
        Field(le=0, description="The same for code, where a program that passes nothing gets 0"),
    ] = -1.0

    @model_validator(mode="after")
    def format_never_pays(self) -> Self:
        if self.unclosed_think > self.math_wrong:
            raise ValueError(
                f"unclosed_think={self.unclosed_think} would pay more than a wrong answer; "
                f"use {self.math_wrong} or less"
            )
        return self


class JudgeSettings(Settings):
    """How an answer is judged."""

    sandbox: Annotated[
        Literal["bubblewrap", "firejail", "unprivileged", "none"],
        Field(description="Isolation of model-written code; `none` marks every score as unsafe"),
    ] = "bubblewrap"
    max_tests: Annotated[
        int | None,
        Field(ge=1, description="Judge on this many tests, the same ones for every answer"),
    ] = None
    stop_at_first_failure: Annotated[
        bool,
        Field(description="Stop at the first failure; later tests count as failed"),
    ] = False
    math_timeout_s: PositiveFloat = 10.0
    time_limit_factor: PositiveFloat = 1.0
    output_limit_mb: PositiveInt = 16
    reward: RewardSettings = RewardSettings()
    runtime: JudgeRuntime = JudgeRuntime()
