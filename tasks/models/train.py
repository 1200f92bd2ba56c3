"""The stages around training: each is one supervised child process, so that the flow stays light.

A killed stage leaves its checkpoints in `.resume/`; the same key finds them and goes on.
"""

from collections.abc import Iterable
from pathlib import Path

from ...configs.files import files_in
from ...configs.settings.judging import GRADER_VERSION
from ...configs.settings.topology import Launch
from ...configs.settings.training import BaseModelSettings, RLSettings, SFTSettings
from ...eval.records.tables import column
from ...training.launch.jobs import BaseJob, RLJob, SFTJob
from ...training.launch.result_files import CHECKPOINT, KEPT
from ..engine.child import run_child
from ..engine.stage import Metrics, stage
from ..store.store import Artifact
from .launch import run_launched


def local_model(settings: BaseModelSettings) -> Iterable[Path | tuple[str, Path]]:
    """The files of a model that is a local folder, and of its template: another content is another
    start."""
    if settings.kind == "random":
        return ()
    template = Path(settings.chat_template or "").expanduser()
    files = files_in(Path(settings.model))
    return [*files, template] if template.is_file() else files


@stage(version=1, group="SFT", reads=local_model)
def base(
    out: Path, examples: Artifact | None = None, *, settings: BaseModelSettings, seed: int
) -> Metrics:
    """The model training starts from: pretrained (§4.1), or a small Qwen3 made from the seed."""
    corpus = examples.file(KEPT) if examples else None
    return run_child(BaseJob(out=out, examples=corpus, settings=settings, seed=seed), out)


@stage(version=3, group="SFT")  # answers that mention their end
def sft(
    out: Path, base: Artifact, examples: Artifact, *, settings: SFTSettings, seed: int
) -> Metrics:
    """Long chain-of-thought supervised fine-tuning (§3.1, Eq. 8)."""
    start, rows = base.file(CHECKPOINT), examples.file(KEPT)
    job = SFTJob(out=out, base=start, examples=rows, settings=settings, seed=seed)
    return run_launched(job, out, settings.runtime.launch or Launch())


@stage(version=1 + GRADER_VERSION, group="RL")  # rewards are the judge's verdicts
def rl(
    out: Path, checkpoint: Artifact, problems: Artifact, *, settings: RLSettings, seed: int
) -> Metrics:
    """GPPO reinforcement learning on the problems of one domain (§3.2, Eq. 11-14)."""
    rows = problems.file(KEPT)
    count = list(column(rows, "domain")).count(settings.domain)
    if not count:
        raise ValueError(
            f"no {settings.domain} problem is left after filter_rl: add sources to collect, "
            f"or lower filter_rl.{settings.domain}_threshold"
        )
    start = checkpoint.file(CHECKPOINT)
    seed = seed if settings.seed is None else settings.seed
    job = RLJob(out=out, checkpoint=start, problems=rows, settings=settings, seed=seed)
    return {"problems": count, **run_launched(job, out, settings.runtime.launch or Launch())}
