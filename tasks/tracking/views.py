"""The saved view of an experiment in MLflow: which runs it lists, and its charts in their order.

It stands under "Views" beside those that people save; theirs stay.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KEY, NAME = "klear-learning", "Learning"
ADDRESS = "#/experiments/{id}/runs?workflowType=machine_learning"
"""The runs list; without the parameter a browser opens it in its mode for LLM applications."""
VIEW_ADDRESS = f"{ADDRESS}&compareRunsMode=CHART&viewStateShareKey={KEY}"


def tags_of(name: str) -> dict[str, str]:
    """What MLflow's pages tell the run of a stage, or of a "pipeline", by."""
    return TABLE["tags"].get(name.partition("_")[0], {})


def view(benchmarks: Sequence[str]) -> dict[str, Any]:
    """The state of the page."""
    accuracy = {"Accuracy by stage": [[f"{name}/avg"] for name in benchmarks]}
    sections = TABLE["sections"] | accuracy
    charts = [
        {**TABLE["chart"], "uuid": of[0], "metricSectionId": name}
        | {"metricKey": of[0], "selectedMetricKeys": of}
        for name, wanted in sections.items()
        for of in wanted
    ]
    folded = [{"uuid": n, "name": n, "display": bool(sections[n])} for n in sections]
    return TABLE["view"] | {"compareRunCharts": charts, "compareRunSections": folded}
