"""Settings of the judge, which the filters, the RL reward and the benchmarks share."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from .base import Runtime, Settings

GRADER_VERSION = 10
"""Of the stage `judge`, and part of that of RL and evaluations: raised when any verdict changes."""


class JudgeRuntime(Runtime):
    workers: NonNegativeInt = 0
    """Each has its own sandbox; 0: one per core"""


class RewardSettings(Settings):
    """How a verdict becomes a reward (§3.2.4)."""

    code: Literal["soft", "all_or_nothing", "klear-code"] = "soft"
    """soft: share p of tests passed; all_or_nothing: 1 if all pass, else -1 (the hard reward of
    Fig. 3); klear-code: 2p - 1, as the released code of the paper"""
    unclosed_think: Annotated[float, Field(le=-1)] = -1.0
    """Reward of a math answer without one closed <think> block (§3.2.4)"""
    code_unclosed_think: Annotated[float, Field(le=0)] = -1.0
    """The same for code, where a program that passes nothing gets 0"""

    math_correct: ClassVar = 1.0  # §3.2.4
    math_wrong: ClassVar = -1.0

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

    @model_validator(mode="after")
    def a_wrong_program_is_paid_no_less(self) -> Self:
        if self.code != "soft" and self.code_unclosed_think > -1:
            more = "would pay more than a program that passes nothing; use -1 or less"
            raise ValueError(f"code_unclosed_think={self.code_unclosed_think} {more}")
        return self


class JudgeSettings(Settings):
    """How an answer is judged."""

    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    """Isolation of model-written code; `none` marks every score as unsafe"""
    comparator: Literal["lines", "tokens", "livecodebench"] = "lines"
    """lines: token by token with equal line breaks; tokens: line breaks are spaces; livecodebench:
    run and compare as its official runner does"""
    max_tests: PositiveInt | None = None
    """Judge on this many tests, the same ones for all answers to a problem in a step"""
    stop_after_timeouts: PositiveInt | None = None
    """After so many time-outs in a row the other tests count as such; null (paper): they do not"""
    stop_at_first_failure: bool = False
    """Stop at the first failure; later tests count as failed"""
    reward: RewardSettings = RewardSettings()
    runtime: JudgeRuntime = JudgeRuntime()

    math_timeout_s: ClassVar = 10.0  # the longest comparison of two formulas
    output_limit_mb: ClassVar = 16  # more output is OLE


class RolloutJudgeSettings(JudgeSettings):
    """How an answer is judged in RL."""

    withheld_tests: NonNegativeInt = 0
    """Tests of every code problem that pay nothing, at most half of its tests: run on programs that
    pass the others, they show a policy that games the reward (withheld/gap)"""
