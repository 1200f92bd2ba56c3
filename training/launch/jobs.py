"""What a training child process is asked to do. Importable without torch: the launcher uses it.

`python -m training.launch.child JOB.json` runs one of these and exits 0 or 1.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from configs.settings.base import Settings
from configs.settings.engines import EngineSettings, Sampling
from configs.settings.training import BaseModelSettings, RLSettings, SFTSettings


class _Job(Settings):
    out: Annotated[Path, Field(description="Work folder; a second run of the job resumes in it")]
    seed: Annotated[int, Field(ge=0)] = 0


class BaseJob(_Job):
    """Write the base model to `out/checkpoint`."""

    kind: Literal["base"] = "base"
    examples: Annotated[
        Path | None, Field(description="parquet[Example]: corpus of the small tokenizer (random)")
    ] = None
    settings: BaseModelSettings


class SFTJob(_Job):
    """Fine-tune `base` on `examples`; writes `out/checkpoint`."""

    kind: Literal["sft"] = "sft"
    base: Annotated[Path, Field(description="Checkpoint folder, or a hub id")]
    examples: Annotated[Path, Field(description="parquet[Example]")]
    settings: SFTSettings


class RLJob(_Job):
    """One GPPO stage on `problems`; writes `out/checkpoint` and `out/rollouts.parquet`."""

    kind: Literal["rl"] = "rl"
    checkpoint: Annotated[Path, Field(description="Checkpoint folder, or a hub id")]
    problems: Annotated[Path, Field(description="parquet[Problem]")]
    settings: RLSettings


class GenerateJob(_Job):
    """Answer a file of requests with a local engine."""

    kind: Literal["generate"] = "generate"
    engine: EngineSettings
    sampling: Sampling
    requests: Path


Job = BaseJob | SFTJob | RLJob | GenerateJob
_ADAPTER: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="kind")])


def write_job(path: Path, job: Job) -> None:
    """Write `job` as the JSON file that `python -m training.launch.child` reads."""
    path.write_text(job.model_dump_json(indent=2))


def read_job(path: Path) -> Job:
    """Read a job file; unknown kinds or keys are an error that names them."""
    return _ADAPTER.validate_json(path.read_text())
