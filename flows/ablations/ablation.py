"""One table or figure of the paper as a matrix of runs, arms × seeds, that share cached stages."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from configs.machine import load_machine
from configs.settings.ablation import Ablation, ablations, load_ablation
from configs.settings.base import key_of
from configs.settings.pipeline import Pipeline
from flows.ablations.cell import (
    ARTIFACTS,
    Matrix,
    cells,
    compute,
    label,
    meanings,
)
from flows.cli.plan import Plan, fits_of
from flows.forms.refused import rename_invalid_run
from flows.pipeline import publish, publish_plan
from flows.stages import calls, needed, plan_stages
from tasks.ablation.ablate import AblateSettings, ablate
from tasks.planning.plan import PlannedStage, Planner
from tasks.stage.child import environment
from tasks.stage.progress import Display
from tasks.stage.run import Run
from tasks.stage.run_context import RunSpec, run_context
from tasks.stage.supervise import supervised
from tasks.store.care import ABLATE
from tasks.store.store import Artifact, Store
from training.sizing.fit import Fit

_SCALES = dict.fromkeys(scale for name in ablations() for scale in load_ablation(name).scales)
AblationName = Annotated[str, Field(json_schema_extra={"enum": [*ablations()]})]
ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*_SCALES]})]
Seeds = Annotated[int, Field(ge=1, le=100)]
Concurrent = Annotated[int, Field(ge=1, le=64)]
Told = tuple[str, str, str, int, str]
"""Experiment, profile, arm, seed and the MLflow run above it, as a cell's process is told them."""
COMMAND = [sys.executable, "-P", "-m", "flows.ablations.cell"]
POLL_S = 0.1
GRACE_S = 8.0  # for a cell to say that it ends: it is a run of its own in Prefect and MLflow
TAIL_LINES = 15


def name_of_this_run() -> str:
    """`table6_lm_weight · tiny, 5 seeds`."""
    asked = flow_run.parameters
    return f"{Path(asked['name']).stem} · {asked['profile']}, {asked['seeds']} seeds"


@flow(name="klear-ablation", flow_run_name=name_of_this_run, on_failure=[rename_invalid_run])
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
        meaning=json.dumps([spec.name, profile, seeds, *(key_of(s) for _, _, s in matrix)]),
        resolved=spec.model_dump(mode="json"),
        stall_minutes=matrix[0][2].stall_minutes,
    )
    with run_context(whole) as run:
        publish_plan(lambda: plan_ablation(spec, profile, seeds, run.store), run)
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


class CellFailed(RuntimeError):
    """A cell ended with an error; those beside it were finished first."""


def _beside_each_other(
    name: str, spec: Ablation, matrix: Matrix, run: Run, concurrent: int
) -> dict[str, tuple[Artifact, ...]]:
    """What processes made of the cells that are not in the store yet, by label.

    Processes and not threads: only a main thread can be watched, cancelled and interrupted. Cells
    of one seed wait for each other where they share a stage, so those of one arm go together.
    """
    waiting = [
        (name, settings.profile, arm, seed, run.run_id)
        for arm, seed, settings in sorted(matrix, key=lambda cell: cell[0])
        if any(s.action != "reuse" for s in _planned(spec, settings, run.store))
    ]
    if len(waiting) < 2:
        return {}
    several = min(concurrent, len(waiting))
    made, failures, busy = {}, [], list[_CellProcess]()
    with tempfile.TemporaryDirectory(prefix="klear-ablation-") as scratch:
        try:
            while (waiting and not failures) or busy:
                while waiting and not failures and len(busy) < several:
                    busy.append(_CellProcess(waiting.pop(0), Path(scratch), several, run.display))
                time.sleep(POLL_S)
                for cell in [c for c in busy if c.process.poll() is not None]:
                    busy.remove(cell)
                    artifacts, failure = cell.ended()
                    made |= {cell.name: artifacts} if artifacts else {}
                    failures += [failure] if failure else []
        finally:
            for cell in busy:
                cell.process.terminate()
            for cell in busy:
                cell.process.wait()
    if failures:
        raise CellFailed("\n".join(failures))
    return made


class _CellProcess:
    """A cell that computes on its share of the cores; it ends with this process."""

    def __init__(self, told: Told, scratch: Path, beside: int, display: Display) -> None:
        self.name, self._display, self._began = label(told[2], told[3]), display, time.monotonic()
        self._result = scratch / self.name
        self._log = load_machine().logs / f"ablation-{os.getpid()}-{self.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        display.started(self.name, f"log: {self._log}")
        ours = {n: v for n, v in os.environ.items() if not n.startswith("PREFECT__")}
        share = max(1, len(os.sched_getaffinity(0)) // beside)  # more threads wait for each other
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*supervised(GRACE_S), *COMMAND, *map(str, told), str(self._result)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment({"OMP_NUM_THREADS": str(share)} | ours),
            )

    def ended(self) -> tuple[tuple[Artifact, ...], str]:
        """What it made, or the end of its log."""
        took = time.monotonic() - self._began
        if self.process.returncode == 0:
            made = ARTIFACTS.validate_json(self._result.read_bytes())
            self._display.finished(self.name, "computed", took, made[0].metrics)
            return made, ""
        self._display.finished(self.name, "failed", took, {})
        end = self._log.read_text(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
        return (), "\n".join([f"{self.name} failed; {self._log} ends:", *end])


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
    planner = Planner(Run(store=store, seed=settings.seed), settings.topology, settings.base)
    return plan_stages(needed(f"evaluate_{spec.scored}", calls(settings)), planner)


def _with_runs(why: str, runs: list[str]) -> str:
    shared = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
    return f"{shared}; {why}" if why else shared
