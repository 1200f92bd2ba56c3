"""One table or figure of the paper as a matrix of cells, arms × seeds, that share cached stages.

A cell is one arm with one seed, and only the stages that its score needs. As a process of its own
(`python -m flows.ablation NAME PROFILE ARM SEED PARENT`) it is a flow run of its own in Prefect,
and in MLflow a run below PARENT.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from configs.machine import load_machine
from configs.settings.ablation import Ablation, ablations, load_ablation
from configs.settings.base import key_of
from configs.settings.pipeline import Pipeline
from flows.cli.plan import Plan, fits_of
from flows.pipeline import publish_plan, publish_report
from flows.stages import Call, calls, compute, needed, plan_stages
from tasks.ablation.ablate import AblateSettings, ablate
from tasks.planning.plan import PlannedStage, Planner
from tasks.stage.child import environment
from tasks.stage.run import Run, RunSpec, run_context
from tasks.stage.supervise import supervised
from tasks.stage.watchdog import log_tail
from tasks.store.care import ABLATE
from tasks.store.store import Artifact, Store
from tasks.tracking.prefect_states import CancelledInUI, cancellable, set_cancelled
from training.sizing import Fit, refuse

_SCALES = dict.fromkeys(scale for name in ablations() for scale in load_ablation(name).scales)
AblationName = Annotated[str, Field(json_schema_extra={"enum": [*ablations()]})]
ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*_SCALES]})]
Seeds = Annotated[int, Field(ge=1, le=100)]
Concurrent = Annotated[int, Field(ge=1, le=64)]
Cell = tuple[str, Pipeline]
"""Arm, and settings with the seed."""
COMMAND = [sys.executable, "-P", "-m", "flows.ablation"]
POLL_S = 0.1
GRACE_S = 8.0  # for a cell to say that it ends: it is a run of its own in Prefect and MLflow


class CellFailed(RuntimeError):
    """A cell ended with an error; those beside it were finished first."""


@flow(name="klear-ablation", flow_run_name="{name} · {profile}, {seeds} seeds")
def ablation(
    name: AblationName, profile: ProfileName = "tiny", seeds: Seeds = 5, concurrent: Concurrent = 1
) -> str:
    """One table or figure of the paper: every arm with every seed, then one page of effects.

    Args:
        name: The experiment, a file of `configs/ablations`.
        profile: The scale to run it at; each experiment says what it shows there.
        seeds: Runs an arm; arms are compared seed by seed.
        concurrent: Runs at once on this machine; stages that they share are computed once.
    """
    spec = load_ablation(name)
    matrix = list(cells(spec, profile, seeds))
    whole = RunSpec(
        kind="ablation",
        profile=profile,
        seed=0,
        meaning=json.dumps([spec.name, profile, seeds, *(key_of(s) for _, s in matrix)]),
        resolved=spec.model_dump(mode="json"),
        stall_minutes=matrix[0][1].stall_minutes,
    )
    with run_context(whole) as run:
        publish_plan(lambda: plan_ablation(spec, profile, seeds, run.store), run)
        if concurrent > 1:
            compute_in_processes(name, spec, matrix, run, concurrent)
        inputs: list[Artifact] = []
        for arm, settings in matrix:
            inputs += compute_cell(spec, arm, settings, run.run_id)
        order = tuple((arm, settings.seed) for arm, settings in matrix)
        asked = AblateSettings(ablation=spec, profile=profile, cells=order)
        page = ablate.named(ABLATE + spec.name)(*inputs, settings=asked)
        publish_report(page, page.metrics, run)
        return str(page.folder)


def cells(spec: Ablation, profile: str, seeds: int) -> Iterator[Cell]:
    """Every run; a seed is finished before the next begins."""
    for seed in range(seeds):
        for arm in spec.arms:
            yield arm.name, spec.settings(profile, arm.name, seed)


def label(arm: str, seed: int) -> str:
    """How a cell is called wherever it shows."""
    return f"{arm}-seed{seed}"


def compute_cell(
    spec: Ablation, arm: str, settings: Pipeline, parent: str
) -> tuple[Artifact, Artifact]:
    """The evaluation and the model of a cell, in an MLflow run of its own below `parent`."""
    wanted = RunSpec(
        kind="cell",
        profile=settings.profile,
        seed=settings.seed,
        meaning=json.dumps([spec.name, arm, key_of(settings)]),
        resolved=settings.model_dump(mode="json"),
        stall_minutes=settings.stall_minutes,
        name=label(arm, settings.seed),
        parent=parent,
    )
    target = f"evaluate_{spec.scored}"
    with run_context(wanted) as cell:
        refuse(settings, target)
        made = compute(_calls(spec, settings))
        created = datetime.fromisoformat(cell.store.manifest(made[target]).created)
        cell.tracker.log(cell.run_id, made[target].metrics, created.timestamp())
    return made[target], made[spec.scored]


def compute_in_processes(
    name: str, spec: Ablation, matrix: list[Cell], run: Run, concurrent: int
) -> None:
    """Put into the store what cells need and it lacks, `concurrent` cells at a time.

    Processes and not threads: only a main thread can be watched, cancelled and interrupted. Cells
    of one seed wait for each other where they share a stage, so those of one arm go together.
    """
    waiting = [
        (arm, settings.seed)
        for arm, settings in sorted(matrix, key=lambda cell: cell[0])
        if any(s.action != "reuse" for s in _planned(spec, settings, run.store))
    ]
    several, profile = min(concurrent, len(waiting)), matrix[0][1].profile
    if several < 2:
        return
    failures, busy = list[str](), dict[str, tuple[subprocess.Popen, Path, float]]()
    try:
        while (waiting and not failures) or busy:
            while waiting and not failures and len(busy) < several:
                arm, seed = waiting.pop(0)
                cell = label(arm, seed)
                log = load_machine().logs / f"ablation-{os.getpid()}-{cell}.log"
                run.display.started(cell, f"log: {log}")
                words = [name, profile, arm, str(seed), run.run_id]
                busy[cell] = _started(words, log, several), log, time.monotonic()
            time.sleep(POLL_S)
            for cell in [c for c, (process, *_) in busy.items() if process.poll() is not None]:
                process, log, began = busy.pop(cell)
                failed, took = process.returncode != 0, time.monotonic() - began
                run.display.finished(cell, "failed" if failed else "computed", took, {})
                failures += [f"{cell} failed{log_tail(log)}"] if failed else []
    finally:
        for process, *_ in busy.values():
            process.terminate()
        for process, *_ in busy.values():
            process.wait()
    if failures:
        raise CellFailed("\n".join(failures))


def _started(words: list[str], log: Path, beside: int) -> subprocess.Popen:
    """A cell that computes on its share of the cores; it ends with this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours = {n: v for n, v in os.environ.items() if not n.startswith("PREFECT__")}
    share = max(1, len(os.sched_getaffinity(0)) // beside)  # more threads wait for each other
    with log.open("wb") as file:
        return subprocess.Popen(
            [*supervised(GRACE_S), *COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment({"OMP_NUM_THREADS": str(share)} | ours),
        )


@flow(name="klear-cell", flow_run_name="{name} · {arm}-seed{seed}")
def run_cell(
    name: str, profile: str, arm: str, seed: int, parent: str
) -> tuple[Artifact, Artifact]:
    """One arm of an experiment with one seed: the evaluation and the model it is of."""
    spec = load_ablation(name)
    with cancellable(str(flow_run.id)):
        return compute_cell(spec, arm, spec.settings(profile, arm, seed), parent)


def main(name: str, profile: str, arm: str, seed: str, parent: str) -> None:
    """Whatever stops it ends the process with a traceback, the end of its log."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_cell(name, profile, arm, int(seed), parent)
    except CancelledInUI as stop:
        set_cancelled(stop.flow_run)
        raise


def plan_ablation(spec: Ablation, profile: str, seeds: int, store: Store) -> Plan:
    """What the matrix would reuse and compute: each stage once, with the runs that share it, on
    the machines of its first run."""
    numbers: dict[tuple[object, ...], int] = {}  # of all that a result depends on
    lines: list[PlannedStage] = []
    runs: dict[int, list[str]] = defaultdict(list)
    fits: dict[Fit, list[str]] = defaultdict(list)
    matrix = list(cells(spec, profile, seeds))
    for arm, settings in matrix:
        planned = _planned(spec, settings, store)
        mine: dict[str, int] = {}
        for call, line in zip(_calls(spec, settings), planned, strict=True):
            inputs = (mine[name] for name in call.inputs)
            seed = settings.seed if call.stage.takes_seed else None
            meaning = (call.stage.name, key_of(call.settings), seed, *inputs)
            number = mine[call.stage.name] = numbers.setdefault(meaning, len(numbers))
            if number == len(lines):
                lines.append(line)
            runs[number].append(label(arm, settings.seed))
        for fit in fits_of(settings, planned):
            fits[fit].append(arm)
    ways = Counter(fit.stage for fit in fits)  # one that is not the same in every arm names them
    by_arm = [
        replace(fit, stage=f"{fit.stage} of {', '.join(dict.fromkeys(arms))}")
        if ways[fit.stage] > 1
        else fit
        for fit, arms in fits.items()
    ]
    stages = [replace(line, why=_with_runs(line.why, runs[n])) for n, line in enumerate(lines)]
    return Plan(stages, matrix[0][1].topology, by_arm)


def _calls(spec: Ablation, settings: Pipeline) -> list[Call]:
    return needed(f"evaluate_{spec.scored}", calls(settings))


def _planned(spec: Ablation, settings: Pipeline, store: Store) -> list[PlannedStage]:
    planner = Planner(Run(store=store, seed=settings.seed), settings.topology, settings.base)
    return plan_stages(_calls(spec, settings), planner)


def _with_runs(why: str, runs: list[str]) -> str:
    shared = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
    return f"{shared}; {why}" if why else shared


if __name__ == "__main__":
    main(*sys.argv[1:])
