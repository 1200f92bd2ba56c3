"""What only tells about a result, put beside it before it is published: card, figures, examples."""

import logging
from collections.abc import Sequence
from pathlib import Path

from configs.settings.base import Settings
from configs.settings.judging import JudgeSettings
from tasks.report.card import write_card
from tasks.store.store import PLOTS, Artifact, Manifest, Store

DRAWN = ("logs/metrics.jsonl", "results.json")
GRADED = ("rollouts.parquet", "results.json")
"""Files that make figures and graded examples worth their seconds."""


def write_sidecar_files(
    store: Store, inputs: Sequence[Artifact], settings: Settings, manifest: Manifest, work: Path
) -> list[str]:
    """The names of all that was written; nothing here can fail a stage that is done."""
    names = write_card(store, manifest, work)
    try:
        if any(name in manifest.files for name in DRAWN):
            names += _figures(manifest.stage, work)
        judge = getattr(settings, "judge", None)
        if isinstance(judge, JudgeSettings) and any(n in manifest.files for n in GRADED):
            names += _graded_examples(inputs, judge, work)
    except Exception as error:
        message = "%s: figures and graded examples are not complete: %s"
        logging.getLogger("klear").warning(message, manifest.stage, error)
    return names


def _figures(stage: str, work: Path) -> list[str]:
    from tasks.report.training import stage_figures  # draws with matplotlib: slow to import

    (work / PLOTS).mkdir(exist_ok=True)
    names = []
    for name, svg in stage_figures(stage, work).items():
        names.append(f"{PLOTS}/{name}.svg")
        (work / names[-1]).write_text(svg, encoding="utf-8")
    return names


def _graded_examples(inputs: Sequence[Artifact], judge: JudgeSettings, work: Path) -> list[str]:
    from eval.judge.grades import GRADED as FILE
    from tasks.report.grading import grade_some

    asked = [work / "problems.parquet", *(a.folder / "kept.parquet" for a in inputs)]
    graded = grade_some(work, [p for p in asked if p.exists()], judge)
    if not graded:
        return []
    path = work / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(g.model_dump_json() + "\n" for g in graded), encoding="utf-8")
    return [FILE]
