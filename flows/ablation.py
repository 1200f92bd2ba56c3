"""One table or figure of the paper as a matrix of runs, arms × seeds, that share cached stages."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from configs.ablation import Ablation, ablations, load_ablation
from configs.base import key_of
from configs.settings import Pipeline
from flows.ablation_cell import Matrix, cells, compute, label, meanings, score
from flows.ablation_workers import Job, in_parallel
from flows.pipeline import publish, tell_plan
from flows.plan import Plan, fits_of
from flows.refused import name_refused
from tasks.ablate import AblateSettings, ablate
from tasks.opening import Wanted, opened
from tasks.plan import PlannedStage, Planner
from tasks.run import Run, active
from tasks.store import Artifact, Store
from tasks.store_care import ABLATE
from training.fit import Fit

_SCALES = dict.fromkeys(scale for name in ablations() for scale in load_ablation(name).scales)
AblationName = Annotated[str, Field(json_schema_extra={"enum": [*ablations()]})]
ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*_SCALES]})]
Seeds = Annotated[int, Field(ge=1, le=100)]
Concurrent = Annotated[int, Field(ge=1, le=64)]


def name_of_this_run() -> str:
    """`table6_lm_weight · tiny, 5 seeds`."""
    asked = flow_run.parameters
    return f"{Path(asked['name']).stem} · {asked['profile']}, {asked['seeds']} seeds"


@flow(name="klear-ablation", flow_run_name=name_of_this_run, on_failure=[name_refused])
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
    whole = Wanted(
        kind="ablation",
        profile=profile,
        seed=0,
        meaning=json.dumps([spec.name, profile, seeds, *(key_of(s) for _, _, s in matrix)]),
        resolved=spec.model_dump(mode="json"),
        stall_minutes=matrix[0][2].stall_minutes,
    )
    with opened(whole) as run:
        tell_plan(lambda: plan_ablation(spec, profile, seeds, run.store), run)
        made = _beside_each_other(name, spec, matrix, run, concurrent) if concurrent > 1 else {}
        inputs: list[Artifact] = []
        for arm, seed, settings in matrix:
            done = made.get(label(arm, seed))
            inputs += done or compute(spec, arm, settings, run.run_id)
        asked = AblateSettings(
            ablation=spec, profile=profile, cells=tuple((arm, seed) for arm, seed, _ in matrix)
        )
        page = ablate.named(ABLATE + spec.name)(*inputs, settings=asked)
        publish(page, page.metrics, run)
        return str(page.folder)


def _beside_each_other(
    name: str, spec: Ablation, matrix: Matrix, run: Run, concurrent: int
) -> dict[str, tuple[Artifact, ...]]:
    """What worker processes made of the cells that are not in the store yet, by label."""
    jobs = {
        Job(name, settings.profile, arm, seed, run.run_id): set(meanings(settings, spec.scored))
        for arm, seed, settings in matrix
        if any(s.action != "reuse" for s in _planned(spec, settings, run.store))
    }
    return in_parallel(jobs, concurrent, run.display) if len(jobs) > 1 else {}


def plan_ablation(spec: Ablation, profile: str, seeds: int, store: Store) -> Plan:
    """What the matrix would reuse and compute: each stage once, with the runs that share it, on
    the machines of its first run."""
    lines: dict[str, PlannedStage] = {}
    runs: dict[str, list[str]] = defaultdict(list)
    fits: dict[Fit, list[str]] = defaultdict(list)
    matrix = list(cells(spec, profile, seeds))
    for arm, seed, settings in matrix:
        planned = _planned(spec, settings, store)
        for same, line in zip(meanings(settings, spec.scored), planned, strict=True):
            lines.setdefault(same, line)
            runs[same].append(label(arm, seed))
        for fit in fits_of(settings, planned):
            fits[fit].append(arm)
    stages = [replace(line, why=_with_runs(line.why, runs[same])) for same, line in lines.items()]
    return Plan(stages, matrix[0][2].topology, _by_arm(fits))


def _by_arm(fits: dict[Fit, list[str]]) -> list[Fit]:
    """A stage that is the same in every arm by its name alone, others with their arms."""
    ways = Counter(fit.stage for fit in fits)
    return [
        replace(fit, stage=f"{fit.stage} of {', '.join(dict.fromkeys(arms))}")
        if ways[fit.stage] > 1
        else fit
        for fit, arms in fits.items()
    ]


def _planned(spec: Ablation, settings: Pipeline, store: Store) -> list[PlannedStage]:
    planner = Planner(settings.topology, settings.base)
    with active(Run(store=store, seed=settings.seed, planner=planner)):
        score(settings, spec.scored)
    return planner.stages


def _with_runs(why: str, runs: list[str]) -> str:
    shared = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
    return f"{shared}; {why}" if why else shared
