"""What must hold after any number of kills; each function returns what does not, in words."""

import fcntl
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from home import eventually
from miniature import Place
from roles import of_runs

from tasks.store.care import damaged, remove, waste
from tasks.store.store import Store

MANIFEST = "manifest.json"
TRAINING = ("sft", "rl_math", "rl_code")
CLOCKS = ("seconds", "per_second")
ONLY_PAGES = ("report",)  # its content is addresses and durations
Manifests = Mapping[str, Mapping[str, Any]]
Curves = Mapping[str, Mapping[int, Mapping[str, float]]]


def manifests(store: Path) -> dict[str, dict[str, Any]]:
    """Stage → manifest, of a store that holds one result a stage."""
    found = sorted(p for p in store.glob(f"*/*/{MANIFEST}") if not p.parts[-3].startswith("."))
    stages = Counter(p.parts[-3] for p in found)
    twice = [s for s, n in stages.items() if n > 1]
    assert not twice, f"stages with several results, whose inputs must differ: {twice}"
    return {p.parts[-3]: json.loads(p.read_text()) for p in found}


def equal_digests(reference: Manifests, store: Path) -> list[str]:
    """Every result is what the undisturbed run made."""
    found = manifests(store)
    wrong = [f"{s}: no result" for s in reference if s not in found]
    return wrong + [
        f"{s}: digest {found[s]['digest'][:12]} is not {m['digest'][:12]}"
        for s, m in reference.items()
        if s in found and s not in ONLY_PAGES and found[s]["digest"] != m["digest"]
    ]


def curves(store: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Stage → step → metrics without clocks; AssertionError on a step that is there twice."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for file in sorted(store.glob("*/*/logs/metrics.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [line["step"] for line in lines]
        assert steps == sorted(set(steps)), f"{file}: steps {steps}"
        found[file.parts[-4]] = {line["step"]: _timeless(line["metrics"]) for line in lines}
    return found


def _timeless(metrics: Mapping[str, float]) -> dict[str, float]:
    return {n: v for n, v in metrics.items() if not any(clock in n for clock in CLOCKS)}


def equal_curves(reference: Curves, store: Path) -> list[str]:
    """Every metric of every step is what it was in the undisturbed run."""
    try:
        found = curves(store)
    except AssertionError as error:
        return [str(error)]
    return [
        f"{s}: the curves differ"
        for s, want in reference.items()
        if _comparable(s, found.get(s, {})) != _comparable(s, want)
    ]


def _comparable(
    stage: str, points: Mapping[int, Mapping[str, float]]
) -> Mapping[int, Mapping[str, float]]:
    """Training draws a point a step. Generation draws one every few seconds, of how far it is: the
    clock chooses which, and only the last one is about the result."""
    return points if stage in TRAINING else {s: points[s] for s in sorted(points)[-1:]}


def told_once(place: Place) -> list[str]:
    """MLflow: one run a stage, all finished, and every point on file once, with its value."""
    drawn = curves(place.store)
    ours = {m["mlflow_run"]: s for s, m in manifests(place.store).items()}
    wrong = [f"{s}: its manifest names no MLflow run" for run, s in ours.items() if not run]
    runs = {r.info.run_id: r for r in place.tracked("")}
    wrong += [f"MLflow: {r.info.run_name} is {r.info.status}" for r in runs.values()
              if r.info.status != "FINISHED"]  # fmt: skip
    pairs = Counter(
        (r.data.tags.get("mlflow.parentRunId", ""), r.data.tags.get("klear.stage", ""))
        for r in runs.values()
        if "klear.stage" in r.data.tags
    )
    wrong += [f"MLflow: {n} runs of {stage}" for (_, stage), n in pairs.items() if n > 1]
    for run, stage in ours.items():
        wrong += _told(place, run, stage, drawn.get(stage, {})) if run else []
    return wrong


def _told(place: Place, run: str, stage: str, want: Mapping[int, Mapping[str, float]]) -> list[str]:
    wrong = []
    for name in sorted({n for metrics in want.values() for n in metrics}):
        history = place.mlflow.get_metric_history(run, name)
        twice = [s for s, n in Counter(m.step for m in history).items() if n > 1]
        expected = {s: metrics[name] for s, metrics in want.items() if name in metrics}
        if twice:
            wrong.append(f"MLflow: {stage}, {name}: steps {twice[:5]} were told twice")
        if {m.step: m.value for m in history} != expected:
            wrong.append(f"MLflow: {stage}, {name}: {len(history)} of {len(expected)} steps, "
                         "or other values")  # fmt: skip
    return wrong


def nothing_half(place: Place) -> list[str]:
    """Whatever the store shows as a result is whole, byte by byte; no work folder, no rubbish."""
    store = Store(place.store)
    return [f"{name}: {why}" for name, why in damaged(store) if why]


def cleaned(place: Place) -> list[str]:
    """What kills left is gone by itself, or goes with `klear store gc`."""
    store = Store(place.store)
    for rubbish in waste(store, days=0):
        if rubbish.name.startswith((".work", ".trash")):
            remove(store, rubbish)
    work = list(place.store.glob(".work/*/*"))
    trash = list(place.store.glob(".trash/*"))
    parts = [p for p in place.store.rglob("*") if p.suffix in (".part", ".partial")]
    ledgers = list(place.store.glob(".runs/*.json"))
    return [f"left in the store: {p.relative_to(place.store)}"
            for p in (*work, *trash, *parts, *ledgers)]  # fmt: skip


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


def no_orphan(place: Place, seconds: float = 60.0) -> list[str]:
    """Nothing of any run is left running."""
    if eventually(lambda: not of_runs(place), seconds):
        return []
    return [f"left running: {p.pid} {p.cmdline()[:6]}" for p in of_runs(place)]


def prefect_knows(place: Place, last: str = "COMPLETED") -> list[str]:
    """Every flow run and task run has ended, and the last one well."""

    def open_ones() -> list[str]:
        body = {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING"]}}
        runs = place.call("flow_runs/filter", {"flow_runs": {"state": body}})
        tasks = place.call("task_runs/filter", {"task_runs": {"state": body}})
        return [f"Prefect: {r['name']} is {r['state_name']}" for r in (*runs, *tasks)]

    if not eventually(lambda: not open_ones(), 60.0, 0.5):
        return open_ones()
    latest = place.call("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    state = latest[0]["state_type"]
    return [] if state == last else [f"Prefect: the last run is {state}"]
