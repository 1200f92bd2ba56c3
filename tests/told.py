"""What Prefect and MLflow have been told about a run, set against what its results on disk say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Run as MlflowRun


def parent_of(cockpit: Any, flow_run: str) -> MlflowRun:
    """The one MLflow run of a flow run."""
    (parent,) = _runs(cockpit, f"tags.`prefect.flow_run_id` = '{flow_run}'")
    return parent


def children_of(cockpit: Any, flow_run: str) -> dict[str, MlflowRun]:
    """The stages that it computed, each once."""
    query = f"tags.`mlflow.parentRunId` = '{parent_of(cockpit, flow_run).info.run_id}'"
    found = _runs(cockpit, query)
    by_stage = {run.data.tags["klear.stage"]: run for run in found}
    assert len(by_stage) == len(found), "a stage has two runs"
    return by_stage


def _runs(cockpit: Any, query: str) -> list[MlflowRun]:
    return cockpit.tracked(query)


def missing_in_prefect(cockpit: Any, flow_run: str, stages: Mapping[str, str]) -> list[str]:
    """States, log lines and artifacts that its page lacks; `stages` are their states by name."""
    shown, log = cockpit.states(flow_run), cockpit.log(flow_run)
    wrong = [f"{n} is {shown.get(n)}" for n, s in stages.items() if shown.get(n) != [s]]
    wrong += [f"{n} is too much" for n in shown.keys() - stages.keys()]
    outcome = {"Cached": "cached", "Completed": "computed"}
    said = [f"{name}: {outcome[state]} " for name, state in stages.items()]
    wrong += [f"no line {line!r}" for line in said if line not in log]
    return [*wrong, *({"klear-plan"} - cockpit.artifacts(flow_run))]


def missing_in_mlflow(cockpit: Any, flow_run: str, store: Path) -> list[str]:
    """What the runs of its stages lack: an end, a step of a curve, a figure, the manifest."""
    wrong = [] if parent_of(cockpit, flow_run).info.status == "FINISHED" else ["the parent's end"]
    for stage, run in children_of(cockpit, flow_run).items():
        folder = store / stage / run.data.tags["klear.key"]
        manifest = json.loads((folder / "manifest.json").read_text())
        wrong += [] if run.info.status == "FINISHED" else [f"the end of {stage}"]
        wrong += [f"{stage}: {n}" for n in manifest["metrics"].keys() - run.data.metrics.keys()]
        figures = {Path(n).name for n in manifest["files"] if n.startswith("plots/")}
        listed = cockpit.mlflow.list_artifacts
        wrong += figures - {Path(f.path).name for f in listed(run.info.run_id, "figures")}
        wrong += {"manifest.json"} - {f.path for f in listed(run.info.run_id)}
        wrong += _curves_missing(cockpit, run, folder / "logs" / "metrics.jsonl")
        assert manifest["mlflow_run"] == run.info.run_id
    return wrong


def _curves_missing(cockpit: Any, run: MlflowRun, curves: Path) -> list[str]:
    """Points of the file that are not in MLflow, or are there twice."""
    lines = [json.loads(x) for x in curves.read_text().splitlines()] if curves.exists() else []
    wanted: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in line["metrics"].items():
            wanted.setdefault(name, {})[line["step"]] = float(value)
    wrong = []
    for name, points in wanted.items():
        history = cockpit.mlflow.get_metric_history(run.info.run_id, name)
        told = sorted((m.step, m.value) for m in history if m.step in points)
        wrong += [] if told == sorted(points.items()) else [f"{name}: {len(told)}/{len(points)}"]
    return wrong
