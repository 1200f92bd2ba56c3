"""One table or figure of the paper as a matrix of cells, arms × seeds, that share cached stages.

A cell is one arm with one seed, and only the stages that its score needs: in MLflow a run below
that of the matrix.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import Annotated

from prefect import flow
from pydantic import Field

from ..configs.ablation import Ablation, ablations, load_ablation
from ..configs.settings.base import key_of
from ..configs.settings.pipeline import Pipeline
from ..tasks.ablation.ablate import AblateSettings, ablate
from ..tasks.engine.run import Run
from ..tasks.engine.scheduler import Node, run_graph
from ..tasks.observe.prefect import interrupts_as_cancelled
from ..tasks.observe.run_context import TrackedRun, run_context
from ..tasks.observe.terminal import LogDisplay, chosen_display
from ..tasks.report.run_story import PlannedStage
from ..tasks.store.store import Artifact, Store
from ..training.sizing import Fit, refuse
from .pipeline import publish_plan, publish_report, run_spec
from .plan import Plan, plan
from .stages import Call, calls, compute, compute_one, needed

_SCALES = dict.fromkeys(scale for name in ablations() for scale in load_ablation(name).scales)
AblationName = Annotated[str, Field(json_schema_extra={"enum": [*ablations()]})]
ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*_SCALES]})]
Seeds = Annotated[int, Field(ge=1, le=100)]
Concurrent = Annotated[int, Field(ge=1, le=64)]
Cell = tuple[str, int, Pipeline]
"""Arm, seed, and settings."""
Made = tuple[Artifact, Artifact]
"""The evaluation of a cell, and the model it is of."""
RUNS = "runs"  # how the display calls the cells that are computed beside each other


@flow(name="klear-ablation", flow_run_name="{name} · {profile}")
@interrupts_as_cancelled
def ablation(
    name: AblationName,
    profile: ProfileName = "tiny",
    seeds: Seeds | None = None,
    concurrent: Concurrent = 1,
) -> str:
    """One table or figure of the paper: every arm with every seed, then one page of effects.

    Args:
        name: The experiment, a file of `configs/ablations`.
        profile: The scale to run it at; each experiment says what it shows there.
        seeds: Runs an arm, which are compared seed by seed; default: as the experiment says.
        concurrent: Runs at once on this machine; stages that they share are computed once.
    """
    spec = load_ablation(name)
    matrix = list(cells(spec, profile, seeds))
    keys = (key_of(settings) for *_, settings in matrix)
    meaning = json.dumps([spec.name, profile, seeds or spec.seeds, *keys])
    resolved = spec.model_dump(mode="json")
    with run_context(run_spec(matrix[0][-1], "ablation", meaning, resolved=resolved)) as run:
        publish_plan(plan_ablation(spec, profile, seeds, run.store), run)
        if concurrent > 1:
            made = compute_beside(spec, matrix, run, concurrent)
        else:
            made = [compute_cell(spec, *cell, run.run_id) for cell in matrix]
        order = tuple((arm, seed) for arm, seed, _ in matrix)
        asked = AblateSettings(ablation=spec, profile=profile, cells=order)
        last = Call(ablate.named(spec.stage), (), asked)
        page = compute_one(last, *chain.from_iterable(made))
        publish_report(page, page.metrics, run)
        return str(page.folder)


def cells(spec: Ablation, profile: str, seeds: int | None = None) -> Iterator[Cell]:
    """Every run, of `seeds` or as many as the experiment says; one seed comes after the other."""
    for seed in range(spec.first_seed, spec.first_seed + (seeds or spec.seeds)):
        for arm in spec.arms:
            yield arm.name, seed, spec.settings(profile, arm.name, seed)


def label(arm: str, seed: int) -> str:
    """How a cell is called wherever it shows."""
    return f"{arm}-seed{seed}"


def compute_cell(spec: Ablation, arm: str, seed: int, settings: Pipeline, parent: str) -> Made:
    """The evaluation and the model of a cell, in an MLflow run of its own below `parent`."""
    meaning, target = json.dumps([spec.name, arm, key_of(settings)]), f"evaluate_{spec.scored}"
    place = {"name": label(arm, seed), "parent": parent}
    with run_context(run_spec(settings, "cell", meaning, **place)) as cell:
        asked = _calls(spec, settings)
        refuse(settings, [call.stage.name for call in asked])
        made = compute(asked)
        at = cell.store.manifest(made[target]).made
        cell.tracker.log(cell.run_id, made[target].metrics, at)
    return made[target], made[spec.scored]


def compute_beside(
    spec: Ablation, matrix: list[Cell], run: TrackedRun, concurrent: int
) -> list[Made]:
    """What every cell makes, in order, `concurrent` cells at a time.

    Cells of one seed wait for each other where they share a stage, so those of one arm go together.
    Raises RuntimeError for the first that fails, once those under way have ended.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // concurrent)  # more wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    run.display.started(RUNS, f"{concurrent} of {len(matrix)} at a time")
    ended = count(1)

    def work(arm: str, seed: int, settings: Pipeline) -> Made:
        chosen_display.set(LogDisplay())  # the terminal has one line for all of them
        try:
            made = compute_cell(spec, arm, seed, settings, run.run_id)
        except Exception as error:
            raise RuntimeError(f"{label(arm, seed)} failed: {error}") from error
        run.display.progress(RUNS, next(ended), len(matrix), "")
        return made

    named = {label(arm, seed): (arm, seed, settings) for arm, seed, settings in matrix}
    by_arm = sorted(named.items(), key=lambda cell: cell[1][0])
    made = run_graph({name: Node((), partial(work, *cell)) for name, cell in by_arm}, concurrent)
    return [made[name] for name in named]


def plan_ablation(spec: Ablation, profile: str, seeds: int | None, store: Store) -> Plan:
    """What the matrix would reuse and compute: each stage once, on its first run's machines."""
    shared: dict[tuple[object, ...], tuple[PlannedStage, list[str]]] = {}
    fits: list[Fit] = []  # an arm may have one of its own
    matrix = list(cells(spec, profile, seeds))
    for arm, number, settings in matrix:
        asked = _calls(spec, settings)
        planned = plan(settings, Run(store=store, seed=settings.seed), asked=asked)
        mine: dict[str, tuple[object, ...]] = {}  # all that a result depends on
        for call, line in zip(asked, planned, strict=True):
            seed = settings.seed if call.stage.takes_seed else None
            inputs = tuple(mine[name] for name in call.inputs)
            mine[call.stage.name] = call.stage.name, key_of(call.settings), seed, inputs
            _, runs = shared.setdefault(mine[call.stage.name], (line, []))
            runs.append(label(arm, number))
        fits += [fit for fit in planned.fits if fit not in fits]
    stages = []
    for line, runs in shared.values():
        by = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
        stages.append(replace(line, why="; ".join(filter(None, (by, line.why)))))
    return Plan(stages, matrix[0][-1].topology, fits)


def _calls(spec: Ablation, settings: Pipeline) -> list[Call]:
    return needed(f"evaluate_{spec.scored}", calls(settings))
