"""What a training process, `training.launch.run_job`, is asked to do. Importable without torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, TypeAdapter

from ...configs.settings.engines import EngineSettings, Sampling
from ...configs.settings.training import BaseModelSettings, RLSettings, SFTSettings
from ...eval.records import Record


class _Job(Record):
    out: Path  # work folder; a second run of the job resumes in it
    seed: NonNegativeInt = 0


class BaseJob(_Job):
    """Write the base model to `out/checkpoint`."""

    kind: Literal["base"] = "base"
    examples: Path | None = None
    """parquet[Example]: the corpus of the small tokenizer, where weights are random."""
    settings: BaseModelSettings


class SFTJob(_Job):
    """Fine-tune `base` (folder or hub id) on `examples` (parquet[Example]) into out/checkpoint."""

    kind: Literal["sft"] = "sft"
    base: Path
    examples: Path
    settings: SFTSettings


class RLJob(_Job):
    """One GPPO stage from `checkpoint` (a folder or a hub id) on those of `problems`
    (parquet[Problem]) of its domain; writes `out/checkpoint` and `out/rollouts.parquet`."""

    kind: Literal["rl"] = "rl"
    checkpoint: Path
    problems: Path
    settings: RLSettings


class GenerateJob(_Job):
    """Answer a file of requests with a local engine."""

    kind: Literal["generate"] = "generate"
    engine: EngineSettings
    sampling: Sampling
    requests: Path


Job = BaseJob | SFTJob | RLJob | GenerateJob
JOB: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="kind")])  # a job file
