"""Ablate: the runs of one experiment become one page with effects, intervals and verdicts."""

from pathlib import Path

from pydantic import model_validator

from configs.ablation import Ablation
from configs.base import Settings
from eval.page import figures_of
from eval.page_html import to_html
from eval.page_markdown import PLOTS, to_markdown
from tasks.run import git_commit
from tasks.stage import Metrics, stage
from tasks.store import Artifact
from tasks.store_care import ABLATE_VERSION

_RELATION = {"score": "over", "steadiness": "steadier_than"}


class AblateSettings(Settings):
    """The experiment, and which inputs are what: evaluation and model of each cell, in order."""

    ablation: Ablation
    profile: str
    cells: tuple[tuple[str, int], ...]
    """(arm, seed)."""

    @model_validator(mode="after")
    def cells_are_distinct(self) -> "AblateSettings":
        if len(set(self.cells)) < len(self.cells):
            raise ValueError("a cell is named twice")
        return self


@stage(version=ABLATE_VERSION)
def ablate(out: Path, *inputs: Artifact, settings: AblateSettings) -> Metrics:
    """Write report.md, report.html, plots/ and results.json.

    `inputs` are (evaluation, model) of each cell.
    """
    from eval.ablation_outcome import outcome_of
    from eval.ablation_page import ablation_page  # draws with matplotlib
    from eval.ablation_results import read_cell

    if len(inputs) != 2 * len(settings.cells):
        raise ValueError(f"{len(inputs)} inputs for {len(settings.cells)} cells")
    cells = [
        read_cell(arm, seed, inputs[2 * i].folder, inputs[2 * i + 1].folder)
        for i, (arm, seed) in enumerate(settings.cells)
    ]
    page = ablation_page(settings.ablation, settings.profile, cells, git_commit())
    (out / "report.md").write_text(to_markdown(page), encoding="utf-8")
    (out / "report.html").write_text(to_html(page), encoding="utf-8")
    (out / PLOTS).mkdir(exist_ok=True)
    for figure in figures_of(page.blocks):
        (out / PLOTS / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
    outcome = outcome_of(settings.ablation, settings.profile, cells)
    (out / "results.json").write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
    return {
        f"{f.better}_{_RELATION[f.measure]}_{f.than}/{f.benchmark}/{name}": getattr(f, name)
        for f in outcome.findings
        for name in ("points", "low", "high")
    }
