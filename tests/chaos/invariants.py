"""What must hold after any number of kills; each function returns what does not, in words."""

import fcntl
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from home import eventually
from place import Place

from klear.tasks.store.gc import damaged, find_garbage, remove
from klear.tasks.store.store import Store

TRAINING = ("sft", "rl_math", "rl_code")
CLOCKS = ("seconds", "per_second")
ONLY_PAGES = ("report",)  # its content is addresses and durations
Manifests = Mapping[str, Mapping[str, Any]]
Points = Mapping[int, Mapping[str, float]]
Curves = Mapping[str, Points]


def manifest_files(store: Path) -> list[Path]:
    """Of every result, stage by stage, each in the order in which its results were made."""
    files = (p for p in store.glob("*/*/manifest.json") if not p.parts[-3].startswith("."))
    return sorted(files, key=lambda p: (p.parts[-3], json.loads(p.read_text())["created"]))


def manifests(store: Path) -> dict[str, dict[str, Any]]:
    """Stage → manifest of its latest result."""
    return {p.parts[-3]: json.loads(p.read_text()) for p in manifest_files(store)}


def several(store: Path) -> list[str]:
    """Stages with more than one result: what they were made from must differ."""
    counts = Counter(p.parts[-3] for p in manifest_files(store))
    return [
        f"{stage}: {n} results, from inputs that differ" for stage, n in counts.items() if n > 1
    ]


def equal_results(reference: Manifests, drawn: Curves, store: Path) -> list[str]:
    """Every result that is there is what the undisturbed run made, with its curves. Where the
    inputs differ already, the stage that made them is named, not this one."""
    wrong = []
    for file in manifest_files(store):
        stage, manifest = file.parts[-3], json.loads(file.read_text())
        expected = reference[stage]
        if [i["digest"] for i in manifest["inputs"]] != [i["digest"] for i in expected["inputs"]]:
            continue
        if manifest["digest"] != expected["digest"] and stage not in ONLY_PAGES:
            wrong.append(f"{stage}: digest {manifest['digest']} is not {expected['digest']}")
        if (curve := drawn.get(stage)) is not None:
            wrong += equal_curves({stage: curve}, store, file.parent)
    return wrong


def missing(reference: Manifests, store: Path) -> list[str]:
    """Stages of the undisturbed run without a result."""
    return [f"{stage}: no result" for stage in reference if stage not in manifests(store)]


def curves(store: Path, folder: Path | None = None) -> dict[str, dict[int, dict[str, float]]]:
    """Stage → step → metrics without clocks, of all results or of that in `folder`; AssertionError
    on a step that is there twice."""
    by_folder: dict[str, dict[int, dict[str, float]]] = {}
    files = folder.glob("logs/metrics.jsonl") if folder else store.glob("*/*/logs/metrics.jsonl")
    for file in sorted(files):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [line["step"] for line in lines]
        assert steps == sorted(set(steps)), f"{file}: steps {steps}"
        by_folder[file.parts[-4]] = {
            line["step"]: {n: v for n, v in line["metrics"].items()
                           if not any(clock in n for clock in CLOCKS)}
            for line in lines
        }  # fmt: skip
    return by_folder


def equal_curves(reference: Curves, store: Path, folder: Path | None = None) -> list[str]:
    """Every metric of every step is what it was in the undisturbed run; in `folder` alone, if one
    is named.

    Training draws a point a step. Generation draws one every few seconds, of how far it is: the
    clock chooses which, and only the last one is about the result.
    """

    def comparable(stage: str, points: Points) -> Points:
        return points if stage in TRAINING else {s: points[s] for s in sorted(points)[-1:]}

    try:
        curve = curves(store, folder)
    except AssertionError as error:
        return [str(error)]
    return [
        f"{stage}: the curves differ"
        for stage, points in reference.items()
        if comparable(stage, curve.get(stage, {})) != comparable(stage, points)
    ]


def told_once(place: Place) -> list[str]:
    """MLflow: one run a stage, all finished, and every point on file once, with its value."""
    try:
        drawn = curves(place.store)
    except AssertionError as error:
        return [str(error)]
    runs = place.tracked("")
    wrong = [f"MLflow: {r.info.run_name} is {r.info.status}" for r in runs
             if r.info.status != "FINISHED"]  # fmt: skip
    tags = [r.data.tags for r in runs if "klear.stage" in r.data.tags]
    pairs = Counter((t.get("mlflow.parentRunId", ""), t["klear.stage"]) for t in tags)
    wrong += [f"MLflow: {n} runs of {stage}" for (_, stage), n in pairs.items() if n > 1]
    for stage, manifest in manifests(place.store).items():
        if not (run := manifest["mlflow_run"]):
            wrong.append(f"{stage}: its manifest names no MLflow run")
            continue
        points = drawn.get(stage, {})
        for name in sorted({n for metrics in points.values() for n in metrics}):
            history = place.mlflow.get_metric_history(run, f"{stage}/{name}")
            expected = [(s, points[s][name]) for s in sorted(points) if name in points[s]]
            if sorted((m.step, m.value) for m in history) != expected:
                wrong.append(f"MLflow: {stage}, {name}: {len(history)} points and not the "
                             f"{len(expected)} on file")  # fmt: skip
    return wrong


def nothing_half(place: Place) -> list[str]:
    """Whatever the store shows as a result is whole, byte by byte; no work folder, no rubbish."""
    return [f"{name}: {why}" for name, why in damaged(Store(place.store)) if why]


def cleaned(place: Place) -> list[str]:
    """What kills left is gone by itself, or goes with `klear store gc`."""
    store = Store(place.store)
    for rubbish in find_garbage(store, days=0)[0]:
        if rubbish.name.startswith((".work", ".trash")):
            remove(store, rubbish)
    patterns = (".work/*/*", ".trash/*", ".runs/*.json", "**/*.part", "**/*.partial")
    leftovers = [p for pattern in patterns for p in place.store.glob(pattern)]
    return [f"left in the store: {p.relative_to(place.store)}" for p in leftovers]


def no_lock(place: Place) -> list[str]:
    """Nobody holds a lock of the store, or a folder of the GPU's."""
    held = []
    for path in (*place.store.glob(".locks/*"), *place.home.glob("gpu/*.lock")):
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(f"locked: {path.name}")
    return held


def no_orphan(place: Place) -> list[str]:
    """Nothing of any run is left running."""
    if eventually(lambda: not place.processes_of_runs(), 60.0):
        return []
    return [f"left running: {p.pid} {p.cmdline()[:6]}" for p in place.processes_of_runs()]


def sound(place: Place) -> list[str]:
    """All that holds of a place whatever ran in it."""
    checks = (no_orphan, no_lock, nothing_half, cleaned)
    return [problem for check in checks for problem in check(place)]


def prefect_knows(place: Place) -> list[str]:
    """Every flow run and task run has ended, and the last one well."""

    def open_ones() -> list[str]:
        body = {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING"]}}
        runs = place.call("flow_runs/filter", {"flow_runs": {"state": body}})
        tasks = place.call("task_runs/filter", {"task_runs": {"state": body}})
        return [f"Prefect: {r['name']} is {r['state_name']}" for r in (*runs, *tasks)]

    if not eventually(lambda: not open_ones(), 60.0, 0.5):
        return open_ones()
    (latest,) = place.call("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    state = latest["state_type"]
    return [] if state == "COMPLETED" else [f"Prefect: the last run is {state}"]
