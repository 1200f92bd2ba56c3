"""One table or figure of the paper as a matrix of cells, arms × seeds, that share cached stages.

A cell is one arm with one seed, and only the stages that its score needs: in MLflow a run below
that of the matrix. Where several are computed at once each has a process and a flow run of its own.
"""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import replace
from itertools import chain
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from klear.configs.settings.ablation import Ablation, ablations, load_ablation
from klear.configs.settings.base import key_of
from klear.configs.settings.pipeline import Pipeline
from klear.flows.cli.plan import Plan, fits_of
from klear.flows.pipeline import publish_plan, publish_report, run_spec
from klear.flows.stages import Call, calls, compute, compute_one, needed, plan_stages
from klear.tasks.ablation.ablate import AblateSettings, ablate
from klear.tasks.planning.plan import Planner
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.stage.parts import end, worker_pool
from klear.tasks.stage.run import Run, run_context
from klear.tasks.store.care import ABLATE
from klear.tasks.store.store import Artifact, Store
from klear.tasks.tracking.prefect_states import CancelledInUI, ends_cancelled, heeding_the_ui
from klear.training.sizing import Fit, refuse

_SCALES = dict.fromkeys(scale for name in ablations() for scale in load_ablation(name).scales)
AblationName = Annotated[str, Field(json_schema_extra={"enum": [*ablations()]})]
ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*_SCALES]})]
Seeds = Annotated[int, Field(ge=1, le=100)]
Concurrent = Annotated[int, Field(ge=1, le=64)]
Cell = tuple[str, Pipeline]
"""Arm, and settings with the seed."""
Made = tuple[Artifact, Artifact]
"""The evaluation of a cell, and the model it is of."""
RUNS = "runs"  # how the display calls the cells that are computed beside each other
GRACE_S = 12.0  # for a cell to say that it ends: it is a run of its own in Prefect and MLflow


class CellFailed(RuntimeError):
    """A cell ended with an error."""


@flow(name="klear-ablation", flow_run_name="{name} · {profile}, {seeds} seeds")
@ends_cancelled
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
    meaning = json.dumps([spec.name, profile, seeds, *(key_of(s) for _, s in matrix)])
    resolved = spec.model_dump(mode="json")
    with run_context(run_spec(matrix[0][1], "ablation", meaning, resolved=resolved)) as run:
        publish_plan(plan_ablation(spec, profile, seeds, run.store), run)
        if concurrent > 1:
            made = compute_in_processes(spec, matrix, run, concurrent)
        else:
            made = [compute_cell(spec, *cell, run.run_id) for cell in matrix]
        order = tuple((arm, settings.seed) for arm, settings in matrix)
        asked = AblateSettings(ablation=spec, profile=profile, cells=order)
        last = Call(ablate.named(ABLATE + spec.name), (), asked)
        page = compute_one(last, *chain.from_iterable(made))
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


def compute_cell(spec: Ablation, arm: str, settings: Pipeline, parent: str) -> Made:
    """The evaluation and the model of a cell, in an MLflow run of its own below `parent`."""
    meaning, target = json.dumps([spec.name, arm, key_of(settings)]), f"evaluate_{spec.scored}"
    place = {"name": label(arm, settings.seed), "parent": parent}
    with run_context(run_spec(settings, "cell", meaning, **place)) as cell:
        refuse(settings, target)
        made = compute(_calls(spec, settings))
        at = cell.store.manifest(made[target]).made
        cell.tracker.log(cell.run_id, made[target].metrics, at)
    return made[target], made[spec.scored]


def compute_in_processes(
    spec: Ablation, matrix: list[Cell], run: Run, concurrent: int
) -> list[Made]:
    """What every cell makes, in order, `concurrent` cells at a time.

    Processes and not threads: only a main thread receives signals, and is cancelled by one. Cells
    of one seed wait for each other where they share a stage, so those of one arm go together.
    Raises CellFailed for the first that fails; the others are ended, and go on with the next try.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // concurrent)  # more wait for each other
    run.display.started(RUNS, f"{concurrent} of {len(matrix)} at a time")
    pool = worker_pool(concurrent)
    try:
        begun = {
            label(arm, settings.seed): pool.submit(
                in_process, spec, arm, settings, run.run_id, threads
            )
            for arm, settings in sorted(matrix, key=lambda cell: cell[0])
        }
        for done, future in enumerate(as_completed(begun.values()), 1):
            future.result()
            run.display.progress(RUNS, done, len(matrix), "")
        return [begun[label(arm, settings.seed)].result() for arm, settings in matrix]
    finally:
        end(pool, GRACE_S)


def in_process(spec: Ablation, arm: str, settings: Pipeline, parent: str, threads: int) -> Made:
    """One cell in a worker process, on its share of the cores."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.pop("PREFECT__FLOW_RUN_ID", None)  # that of the form: a cell is a run of its own
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_cell(spec, arm, settings, parent)
    except (Exception, CancelledInUI) as error:  # its text: not every exception can travel
        raise CellFailed(f"{label(arm, settings.seed)} failed: {error}") from error
    except KeyboardInterrupt:
        os._exit(1)  # it has said that it ends, and must not take the next cell
    finally:
        signal.signal(signal.SIGTERM, before)


@flow(name="klear-cell", flow_run_name="{spec.name} · {arm}-seed{settings.seed}")
def run_cell(spec: Ablation, arm: str, settings: Pipeline, parent: str) -> Made:
    """One arm of an experiment with one seed, as a run of its own in Prefect."""
    with heeding_the_ui(str(flow_run.id)):
        return compute_cell(spec, arm, settings, parent)


def plan_ablation(spec: Ablation, profile: str, seeds: int, store: Store) -> Plan:
    """What the matrix would reuse and compute: each stage once, with the runs that share it, on
    the machines of its first run."""
    shared: dict[tuple[object, ...], tuple[PlannedStage, list[str]]] = {}
    fits: list[Fit] = []  # an arm may have one of its own
    matrix = list(cells(spec, profile, seeds))
    for arm, settings in matrix:
        planner = Planner(Run(store=store, seed=settings.seed), settings.topology, settings.base)
        planned = plan_stages(_calls(spec, settings), planner)
        mine: dict[str, tuple[object, ...]] = {}  # all that a result depends on
        for call, line in zip(_calls(spec, settings), planned, strict=True):
            seed = settings.seed if call.stage.takes_seed else None
            inputs = tuple(mine[name] for name in call.inputs)
            mine[call.stage.name] = call.stage.name, key_of(call.settings), seed, inputs
            _, runs = shared.setdefault(mine[call.stage.name], (line, []))
            runs.append(label(arm, settings.seed))
        fits += [fit for fit in fits_of(settings, planned) if fit not in fits]
    stages = []
    for line, runs in shared.values():
        by = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
        stages.append(replace(line, why="; ".join(filter(None, (by, line.why)))))
    return Plan(stages, matrix[0][1].topology, fits)


def _calls(spec: Ablation, settings: Pipeline) -> list[Call]:
    return needed(f"evaluate_{spec.scored}", calls(settings))
