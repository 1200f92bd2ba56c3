"""The stages around training: each is one supervised child process, so that the flow stays light.

A killed stage leaves its checkpoints in `.resume/`; the same key finds them and goes on.
"""

import json
from pathlib import Path

from configs.base import Settings
from configs.training_stages import BaseModelSettings, RLSettings, SFTSettings
from eval.records import Problem
from eval.tables import read_table, write_table
from tasks.child import run_child
from tasks.stage import Metrics, stage
from tasks.store import SCRATCH, Artifact
from training.jobs import BaseJob, RLJob, SFTJob


@stage(version=1)
def base(out: Path, examples: Artifact, *, settings: BaseModelSettings, seed: int) -> Metrics:
    """The model training starts from: pretrained (§4.1), or a small Qwen3 made from the seed."""
    job = BaseJob(out=out, examples=examples.file("kept.parquet"), settings=settings, seed=seed)
    return _run(job, out)


@stage(version=1)
def sft(
    out: Path, base: Artifact, examples: Artifact, *, settings: SFTSettings, seed: int
) -> Metrics:
    """Long chain-of-thought supervised fine-tuning (§3.1, Eq. 8)."""
    job = SFTJob(
        out=out,
        base=base.file("checkpoint"),
        examples=examples.file("kept.parquet"),
        settings=settings,
        seed=seed,
    )
    return _run(job, out, settings.runtime.stall_minutes)


@stage(version=1)
def rl(
    out: Path, checkpoint: Artifact, problems: Artifact, *, settings: RLSettings, seed: int
) -> Metrics:
    """GPPO reinforcement learning on the problems of one domain (§3.2, Eq. 11-14)."""
    chosen = out / SCRATCH / "problems.parquet"
    chosen.parent.mkdir(exist_ok=True)
    rows = read_table(problems.file("kept.parquet"), Problem)
    count = write_table(chosen, Problem, (p for p in rows if p.domain == settings.domain))
    if not count:
        raise ValueError(
            f"no {settings.domain} problem is left after filter_rl: add sources to collect, "
            f"or lower filter_rl.{settings.domain}_threshold"
        )
    job = RLJob(
        out=out,
        checkpoint=checkpoint.file("checkpoint"),
        problems=chosen,
        settings=settings,
        seed=seed,
    )
    return {"problems": count, **_run(job, out, settings.runtime.stall_minutes)}


def _run(job: Settings, out: Path, stall_minutes: float | None = None) -> Metrics:
    """Run the job in a child process; its result.json holds the metrics it returned."""
    run_child(job, out, stall_minutes=stall_minutes)
    return json.loads((out / SCRATCH / "result.json").read_text())
