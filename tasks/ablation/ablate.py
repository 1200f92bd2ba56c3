"""Ablate: the runs of one experiment become one page with effects, intervals and verdicts."""

from pathlib import Path

from configs.settings.ablation import Ablation
from configs.settings.base import Settings
from tasks.stage.run import git_commit
from tasks.stage.stage import Metrics, stage
from tasks.store.care import ABLATE_VERSION
from tasks.store.store import Artifact


class AblateSettings(Settings):
    """The experiment, and which inputs are what: evaluation and model of each cell, in order."""

    ablation: Ablation
    profile: str
    cells: tuple[tuple[str, int], ...]
    """(arm, seed)."""


@stage(version=ABLATE_VERSION)
def ablate(out: Path, *inputs: Artifact, settings: AblateSettings) -> Metrics:
    """Write report.md, report.html, plots/ and results.json.

    `inputs` are (evaluation, model) of each cell.
    """
    from tasks.ablation.outcome import outcome_of, read_cell
    from tasks.ablation.pages import ablation_page  # draws with matplotlib

    pairs = zip(settings.cells, inputs[::2], inputs[1::2], strict=True)
    cells = [read_cell(*cell, scored.folder, model.folder) for cell, scored, model in pairs]
    ablation_page(settings.ablation, settings.profile, cells, git_commit()).write(out)
    outcome = outcome_of(settings.ablation, settings.profile, cells)
    (out / "results.json").write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
    relation = {"score": "over", "steadiness": "steadier_than"}
    return {
        f"{f.better}_{relation[f.measure]}_{f.than}/{f.benchmark}/{name}": getattr(f, name)
        for f in outcome.findings
        for name in ("points", "low", "high")
    }
