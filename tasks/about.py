"""What only tells about a result, put beside it before it is published: card, figures, examples."""

import logging
from collections.abc import Sequence
from pathlib import Path

from configs.base import Settings
from configs.judging import JudgeSettings
from tasks.card import write_card
from tasks.store import PLOTS, Artifact, Manifest, Store

PROBLEMS = "problems.parquet"
KEPT = "kept.parquet"
DRAWN = ("logs/metrics.jsonl", "results.json")
GRADED = ("rollouts.parquet", "results.json")
"""Files that make figures and graded examples worth their seconds."""


def write_about(
    store: Store, inputs: Sequence[Artifact], settings: Settings, manifest: Manifest, work: Path
) -> list[str]:
    """The names of all that was written; nothing here can fail a stage that is done."""
    names = write_card(store, manifest, work)
    for write in (_figures, _graded):
        try:
            names += write(inputs, settings, manifest, work)
        except Exception as error:
            logging.getLogger("klear").warning(
                "%s: %s not written: %s", manifest.stage, write.__name__.strip("_"), error
            )
    return names


def _figures(_: Sequence[Artifact], __: Settings, manifest: Manifest, work: Path) -> list[str]:
    if not any(name in manifest.files for name in DRAWN):
        return []
    from eval.figures import stage_figures  # draws with matplotlib: slow to import

    names = []
    for name, svg in stage_figures(manifest.stage, work).items():
        path = work / PLOTS / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg, encoding="utf-8")
        names.append(f"{PLOTS}/{name}.svg")
    return names


def _graded(
    inputs: Sequence[Artifact], settings: Settings, manifest: Manifest, work: Path
) -> list[str]:
    judge = getattr(settings, "judge", None)
    if not isinstance(judge, JudgeSettings) or not any(n in manifest.files for n in GRADED):
        return []
    from eval.graded import FILE
    from eval.grading import grade_some

    asked = [work / PROBLEMS, *(a.folder / KEPT for a in inputs)]
    graded = grade_some(work, [p for p in asked if p.exists()], judge)
    if not graded:
        return []
    path = work / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(g.model_dump_json() + "\n" for g in graded), encoding="utf-8")
    return [FILE]
