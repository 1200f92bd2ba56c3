"""The whole pipeline as one frozen tree; a profile (configs/*.yaml) says only what differs."""

from typing import Annotated

from pydantic import Field

from configs.base import Settings
from configs.data_stages import (
    CollectSettings,
    DecontaminateSettings,
    DedupSettings,
    DifficultySettings,
    FilterRLSettings,
    FilterTestsSettings,
    JudgeStageSettings,
    SampleSettings,
    SelectSettings,
)
from configs.training_stages import (
    BaseModelSettings,
    EvaluateSettings,
    ReportSettings,
    RLSettings,
    SFTSettings,
)


class Pipeline(Settings):
    """Base model to reasoning model. Every default is the paper's value, where it gives one."""

    profile: Annotated[str, Field(title="Profile")]
    seed: Annotated[int, Field(ge=0, description="Of every random stage of this run")] = 0
    collect: CollectSettings
    benchmarks: CollectSettings
    dedup: DedupSettings = DedupSettings()
    decontaminate: DecontaminateSettings = DecontaminateSettings()
    distill: SampleSettings
    judge: JudgeStageSettings = JudgeStageSettings()
    rate: SampleSettings | None = None
    difficulty: DifficultySettings = DifficultySettings()
    select: SelectSettings = SelectSettings()
    filter_tests: FilterTestsSettings = FilterTestsSettings()
    sample: SampleSettings
    judge_rl: JudgeStageSettings = JudgeStageSettings()
    filter_rl: FilterRLSettings = FilterRLSettings()
    base: BaseModelSettings = BaseModelSettings()
    sft: SFTSettings = SFTSettings()
    rl_math: RLSettings = RLSettings()
    rl_code: RLSettings = RLSettings(
        domain="code", mini_batch_prompts=32, learning_rate=5e-7
    )  # §4.1
    evaluate: EvaluateSettings = EvaluateSettings()
    agreement: Annotated[
        SampleSettings | None,
        Field(description="Recorded answers with published grades, to check the judge against"),
    ] = None
    report: ReportSettings = ReportSettings()

    @property
    def stages_left_out(self) -> set[str]:
        """Stages that these settings do not run."""
        rating = set() if self.difficulty.rater == "model" else {"rate", "judge_rate"}
        checking = set() if self.agreement else {"agreement", "judge_agreement"}
        return rating | checking
