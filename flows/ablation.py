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

from ..configs.ablation import Ablation, load_ablation
from ..configs.loading import Request, load_profile
from ..configs.machine import load_machine
from ..configs.settings.base import key_of
from ..configs.settings.pipeline import Pipeline
from ..tasks.ablation.ablate import AblateSettings, ablate
from ..tasks.engine.run import Run
from ..tasks.engine.scheduler import Node, run_graph
from ..tasks.observe.run_context import TrackedRun, run_context
from ..tasks.observe.terminal import LogDisplay, chosen_display
from ..tasks.report.run_story import PlannedStage
from ..tasks.store.shared import open_store
from ..tasks.store.store import Artifact, Store
from ..training.sizing import Fit
from .dag import StageCall, build_dag, upstream_of
from .plan import Plan, plan
from .run import compute, compute_one, publish_plan, publish_report, run_spec, show_plan

Cell = tuple[str, int, Pipeline]
"""Arm, seed, and settings."""
Scored = tuple[Artifact, Artifact]
"""The evaluation of a cell, and the model it is of."""
RUNS = "runs"  # how the display calls the cells that are computed beside each other


def run_ablation(
    name: str, profile: str, seeds: int | None, concurrent: int, plan_only: bool = False
) -> str:
    """Every arm with every seed, then one page of effects. Returns the page's folder."""
    spec = load_ablation(name)
    if plan_only:
        planned = plan_ablation(spec, profile, seeds, open_store(load_machine()))
        return show_plan(planned.kept())
    matrix, unchanged = list(cells(spec, profile, seeds)), load_profile(profile)
    keys = (key_of(settings) for *_, settings in matrix)
    meaning = json.dumps([spec.name, profile, seeds or spec.seeds, *keys])
    request, resolved = Request(matrix[0][-1], unchanged), spec.model_dump(mode="json")
    with run_context(run_spec(request, "ablation", meaning, resolved=resolved)) as run:
        publish_plan(plan_ablation(spec, profile, seeds, run.store).kept(), run)
        if concurrent > 1:
            scored = compute_beside(spec, matrix, run, unchanged, concurrent)
        else:
            scored = [compute_cell(spec, *cell, unchanged, run.run_id) for cell in matrix]
        order = tuple((arm, seed) for arm, seed, _ in matrix)
        settings = AblateSettings(ablation=spec, profile=profile, cells=order)
        last = StageCall(ablate.named(spec.stage), (), settings)
        page = compute_one(last, *chain.from_iterable(scored))
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


def compute_cell(
    spec: Ablation, arm: str, seed: int, settings: Pipeline, unchanged: Pipeline, parent: str
) -> Scored:
    """The evaluation and the model of a cell, in an MLflow run of its own below `parent`;
    `unchanged` is what its profile says."""
    meaning, target = json.dumps([spec.name, arm, key_of(settings)]), f"evaluate_{spec.scored}"
    fields = {"name": label(arm, seed), "parent": parent}
    with run_context(run_spec(Request(settings, unchanged), "cell", meaning, **fields)) as cell:
        results = compute(settings, calls=_calls(spec, settings))
        moment = cell.store.manifest(results[target]).made
        cell.tracker.log(cell.run_id, results[target].metrics, moment)
    return results[target], results[spec.scored]


def compute_beside(
    spec: Ablation, matrix: list[Cell], run: TrackedRun, unchanged: Pipeline, concurrent: int
) -> list[Scored]:
    """What every cell makes, in order, `concurrent` cells at a time.

    Cells of one seed wait for each other where they share a stage, so those of one arm go together.
    Raises RuntimeError for the first that fails, once those under way have ended.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // concurrent)  # more wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    run.display.started(RUNS, f"{concurrent} of {len(matrix)} at a time")
    ended = count(1)

    def work(arm: str, seed: int, settings: Pipeline) -> Scored:
        chosen_display.set(LogDisplay())  # the terminal has one line for all of them
        try:
            scored = compute_cell(spec, arm, seed, settings, unchanged, run.run_id)
        except Exception as error:
            raise RuntimeError(f"{label(arm, seed)} failed: {error}") from error
        run.display.progress(RUNS, next(ended), len(matrix), "")
        return scored

    labelled = {label(arm, seed): (arm, seed, settings) for arm, seed, settings in matrix}
    by_arm = sorted(labelled.items(), key=lambda cell: cell[1][0])
    scored = run_graph({name: Node((), partial(work, *cell)) for name, cell in by_arm}, concurrent)
    return [scored[name] for name in labelled]


def plan_ablation(spec: Ablation, profile: str, seeds: int | None, store: Store) -> Plan:
    """What the matrix would reuse and compute: each stage once, on its first run's machines."""
    shared: dict[tuple[object, ...], tuple[PlannedStage, list[str]]] = {}
    fits: list[Fit] = []  # an arm may have one of its own
    matrix = list(cells(spec, profile, seeds))
    for arm, number, settings in matrix:
        calls = _calls(spec, settings)
        planned = plan(settings, Run(store=store, seed=settings.seed), calls=calls)
        identity: dict[str, tuple[object, ...]] = {}  # all that a result depends on
        for call, line in zip(calls, planned, strict=True):
            stage, seed = call.stage, settings.seed if call.stage.takes_seed else None
            inputs = tuple(identity[name] for name in call.inputs)
            identity[stage.name] = stage.name, key_of(call.settings), seed, inputs
            _, runs = shared.setdefault(identity[stage.name], (line, []))
            runs.append(label(arm, number))
        fits += [fit for fit in planned.fits if fit not in fits]
    stages = []
    for line, runs in shared.values():
        users = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
        stages.append(replace(line, why="; ".join(filter(None, (users, line.why)))))
    return Plan(stages, matrix[0][-1].topology, fits, f"{spec.name} {profile}")


def _calls(spec: Ablation, settings: Pipeline) -> list[StageCall]:
    return upstream_of(f"evaluate_{spec.scored}", build_dag(settings))
