"""An experiment's page in MLflow, and the view saved in it beside those of people (views.toml)."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PAGE = TABLE["page"]  # in which {id} is the experiment's
CHARTS = PAGE["charts"].replace("{key}", PAGE["key"])
ABOUT = PAGE["about"].replace("{charts}", CHARTS)


def tags_of(name: str) -> dict[str, str]:
    """What MLflow's pages tell the run of a stage, or of a "pipeline", by."""
    return TABLE["tags"].get(name.partition("_")[0], {})


def view(benchmarks: Sequence[str]) -> dict[str, Any]:
    """The state of the page."""
    sections = TABLE["sections"] | {"Accuracy by stage": [[f"{name}/avg"] for name in benchmarks]}
    charts = [
        {**TABLE["chart"], "uuid": of[0], "metricSectionId": name}
        | {"metricKey": of[0], "selectedMetricKeys": of}
        for name, wanted in sections.items()
        for of in wanted
    ]
    folded = [{"uuid": n, "name": n, "display": bool(sections[n])} for n in sections]
    return TABLE["view"] | {"compareRunCharts": charts, "compareRunSections": folded}
