"""Settings of the judge, which the filters, the RL reward and the benchmarks share."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from configs.base import Runtime, Settings


class JudgeRuntime(Runtime):
    workers: Annotated[
        int,
        Field(
            ge=0, title="Judge workers (0 = one per core)", description="Each has its own sandbox"
        ),
    ] = 0


class RewardSettings(Settings):
    """How a verdict becomes a reward (§3.2.4)."""

    math_correct: Annotated[float, Field(description="§3.2.4: 1")] = 1.0
    math_wrong: Annotated[float, Field(description="§3.2.4: -1")] = -1.0
    code: Annotated[
        Literal["soft", "all_or_nothing", "klear-code"],
        Field(
            title="Code reward",
            description="soft: share p of tests passed; all_or_nothing: 1 if all pass, else -1 "
            "(the hard reward of Fig. 3); klear-code: 2p - 1, as the released code of the paper",
        ),
    ] = "soft"
    unclosed_think: Annotated[
        float,
        Field(description="Reward of a math answer without one closed <think> block (§3.2.4)"),
    ] = -1.0
    code_unclosed_think: Annotated[
        float,
        Field(le=0, description="The same for code, where a program that passes nothing gets 0"),
    ] = -1.0

    @property
    def code_wrong(self) -> float:
        """What a program that passes nothing is paid."""
        return 0.0 if self.code == "soft" else -1.0

    def of_math(self, correct: bool, closed_think: bool) -> float:
        """The reward of a math answer, closed_think: after exactly one closed think block."""
        if not closed_think:
            return self.unclosed_think
        return self.math_correct if correct else self.math_wrong

    def of_code(self, correct: bool, pass_rate: float, closed_think: bool) -> float:
        """The reward of a program that passes `pass_rate` of its tests."""
        if not closed_think:
            return self.code_unclosed_think
        if self.code == "all_or_nothing":
            return 1.0 if correct else -1.0
        return 2 * pass_rate - 1 if self.code == "klear-code" else pass_rate

    @field_validator("code", mode="before")
    @classmethod
    def the_old_name_is_not_the_new_reward(cls, code: object) -> object:
        """`hard` paid 0 for failing: results made so must not pass for those of Fig. 3."""
        if code == "hard":
            raise ValueError(
                "hard is gone, it paid 0 to a program that fails; use all_or_nothing, which pays -1"
            )
        return code

    @model_validator(mode="after")
    def wrong_never_pays(self) -> Self:
        pairs = (
            ("math_wrong", self.math_wrong, "a right answer", self.math_correct),
            ("unclosed_think", self.unclosed_think, "a wrong answer", self.math_wrong),
            ("code_unclosed_think", self.code_unclosed_think, "a wrong program", self.code_wrong),
        )
        for name, value, better, limit in pairs:
            if value > limit:
                raise ValueError(
                    f"{name}={value} would pay more than {better}; use {limit} or less"
                )
        return self


class JudgeSettings(Settings):
    """How an answer is judged."""

    sandbox: Annotated[
        Literal["bubblewrap", "firejail", "unprivileged", "none"],
        Field(description="Isolation of model-written code; `none` marks every score as unsafe"),
    ] = "bubblewrap"
    comparator: Annotated[
        Literal["lines", "tokens", "livecodebench"],
        Field(
            description="lines: token by token with equal line breaks; tokens: line breaks are "
            "spaces; livecodebench: run and compare as its official runner does"
        ),
    ] = "lines"
    max_tests: Annotated[
        int | None,
        Field(
            ge=1,
            description="Judge on this many tests, the same ones for all answers to a problem in "
            "a step",
        ),
    ] = None
    stop_after_timeouts: Annotated[
        int | None,
        Field(
            ge=1,
            description="After this many time-outs in a row the other tests count as timed out; "
            "null, as in the paper: run them all",
        ),
    ] = None
    stop_at_first_failure: Annotated[
        bool,
        Field(description="Stop at the first failure; later tests count as failed"),
    ] = False
    math_rules: Annotated[
        Literal["klear", "math-verify"],
        Field(
            description="klear: the last box, exact; math-verify: its plain call on the whole "
            "answer, for comparison with scores made so"
        ),
    ] = "klear"
    math_timeout_s: Annotated[
        PositiveFloat, Field(description="Longest comparison of two formulas")
    ] = 10.0
    time_limit_factor: Annotated[
        PositiveFloat, Field(description="Times each problem's own time limit")
    ] = 1.0
    output_limit_mb: Annotated[PositiveInt, Field(description="More output is OLE")] = 16
    reward: Annotated[
        RewardSettings, Field(description="How a verdict becomes a reward (§3.2.4)")
    ] = RewardSettings()
    runtime: Annotated[JudgeRuntime, Field(description="How it is computed; changes no result")] = (
        JudgeRuntime()
    )
