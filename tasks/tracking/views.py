"""The saved view of an experiment in MLflow: which runs it lists, and its charts in their order.

It stands under "Views" beside those that people save; theirs stay.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("views.toml")
KEY, NAME = "klear-learning", "Learning"
LISTED = {"klear.listed": "learning"}
"""Tag of the runs that the view lists: pipelines, SFT and RL; MLflow's search has no OR."""
EVALUATION = {"mlflow.runType": "genai_evaluate"}
ADDRESS = "#/experiments/{id}/runs?workflowType=machine_learning"
"""The runs list; without the parameter a browser may open it in its mode for LLM applications."""
VIEW_ADDRESS = f"{ADDRESS}&compareRunsMode=CHART&viewStateShareKey={KEY}"


def tags_of(stage: str) -> dict[str, str]:
    """What MLflow's pages tell a stage's run by."""
    kind = stage.partition("_")[0]
    return LISTED if kind in ("sft", "rl") else EVALUATION if kind == "evaluate" else {}


def view(benchmarks: Sequence[str]) -> dict[str, Any]:
    """The state of the page as MLflow 3.17 saves it."""
    accuracy = [{"title": name, "metrics": [f"{name}/avg"]} for name in benchmarks]
    first = {"name": "Accuracy by stage"}
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["section"]
    sections = [{**first, "charts": accuracy}, *table]
    charts = [(s["name"], chart) for s in sections for chart in s["charts"]]
    (tag, value), *_ = LISTED.items()
    return {
        "searchFilter": f"tags.`{tag}` = '{value}'",
        "orderByKey": "attributes.Created",  # by start_time stages would hide below their pipelines
        "runsHiddenMode": "FIRST_20_RUNS",
        "isAccordionReordered": True,  # else MLflow sorts the sections by name
        "compareRunSections": [_section(s["name"], display=True) for s in sections]
        + [_section(name, display=False) for name in ("Model metrics", "System metrics")],
        "compareRunCharts": [_chart(name, **chart) for name, chart in charts],
    }


def _section(name: str, *, display: bool) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": display, "isReordered": True}


def _chart(section: str, title: str, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "uuid": f"{section}/{title}",
        "type": "LINE",
        "metricSectionId": section,
        "displayName": title,
        "metricKey": metrics[0],
        "selectedMetricKeys": metrics,
        "runsCountToCompare": 20,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
