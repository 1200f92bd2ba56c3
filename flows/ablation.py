"""One table or figure of the paper as a matrix of cells, arms × seeds, that share cached stages.

A cell is one arm with one seed, and only the stages that its score needs. As a process of its own
(`python -m flows.ablation NAME PROFILE ARM SEED PARENT`) it is a flow run of its own in Prefect,
and in MLflow a run below PARENT.
"""

import hashlib
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
from types import FrameType
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from configs.machine import load_machine
from configs.settings.ablation import Ablation, ablations, load_ablation
from configs.settings.base import key_of
from configs.settings.pipeline import Pipeline
from flows.cli.plan import Plan, fits_of
from flows.run_page import publish_plan, publish_report
from flows.stages import calls, compute, needed, plan_stages
from tasks.ablation.ablate import AblateSettings, ablate
from tasks.planning.plan import PlannedStage, Planner
from tasks.stage.child import environment
from tasks.stage.run import Run
from tasks.stage.run_context import RunSpec, run_context
from tasks.stage.supervise import supervised
from tasks.stage.watchdog import log_tail
from tasks.store.care import ABLATE
from tasks.store.store import Artifact, Store
from tasks.tracking.prefect_states import CancelledInUI, cancellable, set_cancelled
from training.sizing.fit import Fit, refuse

_SCALES = dict.fromkeys(scale for name in ablations() for scale in load_ablation(name).scales)
AblationName = Annotated[str, Field(json_schema_extra={"enum": [*ablations()]})]
ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*_SCALES]})]
Seeds = Annotated[int, Field(ge=1, le=100)]
Concurrent = Annotated[int, Field(ge=1, le=64)]
Cell = tuple[str, int, Pipeline]
"""Arm, seed and settings."""
COMMAND = [sys.executable, "-P", "-m", "flows.ablation"]
POLL_S = 0.1
GRACE_S = 8.0  # for a cell to say that it ends: it is a run of its own in Prefect and MLflow


class CellFailed(RuntimeError):
    """A cell ended with an error; those beside it were finished first."""


def name_of_this_run() -> str:
    """`table6_lm_weight · tiny, 5 seeds`."""
    asked = flow_run.parameters
    return f"{Path(asked['name']).stem} · {asked['profile']}, {asked['seeds']} seeds"


@flow(name="klear-ablation", flow_run_name=name_of_this_run)
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
        if concurrent > 1:
            compute_in_processes(name, spec, matrix, run, concurrent)
        inputs: list[Artifact] = []
        for arm, _, settings in matrix:
            inputs += compute_cell(spec, arm, settings, run.run_id)
        asked = AblateSettings(
            ablation=spec, profile=profile, cells=tuple((arm, seed) for arm, seed, _ in matrix)
        )
        page = ablate.named(ABLATE + spec.name)(*inputs, settings=asked)
        publish_report(page, page.metrics, run)
        return str(page.folder)


def cells(spec: Ablation, profile: str, seeds: int) -> Iterator[Cell]:
    """Every run; a seed is finished before the next begins."""
    for seed in range(seeds):
        for arm in spec.arms:
            yield arm.name, seed, spec.settings(profile, arm.name, seed)


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
        made = compute(needed(target, calls(settings)))
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
        (arm, seed)
        for arm, seed, settings in sorted(matrix, key=lambda cell: cell[0])
        if any(s.action != "reuse" for s in _planned(spec, settings, run.store))
    ]
    several = min(concurrent, len(waiting))
    if several < 2:
        return
    profile, failures, busy = matrix[0][2].profile, [], list[_CellProcess]()
    try:
        while (waiting and not failures) or busy:
            while waiting and not failures and len(busy) < several:
                arm, seed = waiting.pop(0)
                busy.append(_CellProcess([name, profile, arm, str(seed)], several, run))
            time.sleep(POLL_S)
            for cell in [c for c in busy if c.process.poll() is not None]:
                busy.remove(cell)
                failures += cell.failures()
    finally:
        for cell in busy:
            cell.process.terminate()
        for cell in busy:
            cell.process.wait()
    if failures:
        raise CellFailed("\n".join(failures))


class _CellProcess:
    """A cell that computes on its share of the cores; it ends with this process."""

    def __init__(self, words: list[str], beside: int, run: Run) -> None:
        self._name, self._display = label(words[2], int(words[3])), run.display
        self._began = time.monotonic()
        self._log = load_machine().logs / f"ablation-{os.getpid()}-{self._name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._display.started(self._name, f"log: {self._log}")
        ours = {n: v for n, v in os.environ.items() if not n.startswith("PREFECT__")}
        share = max(1, len(os.sched_getaffinity(0)) // beside)  # more threads wait for each other
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*supervised(GRACE_S), *COMMAND, *words, run.run_id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment({"OMP_NUM_THREADS": str(share)} | ours),
            )

    def failures(self) -> list[str]:
        """Why it failed, if it did; it has ended."""
        failed, took = self.process.returncode != 0, time.monotonic() - self._began
        self._display.finished(self._name, "failed" if failed else "computed", took, {})
        return [f"{self._name} failed{log_tail(self._log)}"] if failed else []


@flow(name="klear-cell", flow_run_name="{experiment} · {arm}-seed{seed}")
def run_cell(
    experiment: str, file: str, profile: str, arm: str, seed: int, parent: str
) -> tuple[Artifact, Artifact]:
    """One arm of an experiment with one seed: the evaluation and the model it is of."""
    spec = load_ablation(file)
    with cancellable(str(flow_run.id)):
        return compute_cell(spec, arm, spec.settings(profile, arm, seed), parent)


def main(file: str, profile: str, arm: str, seed: str, parent: str) -> int:
    """Exit code: 1 when it failed or was interrupted, else 0."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run_cell(load_ablation(file).name, file, profile, arm, int(seed), parent)
        return 0
    except KeyboardInterrupt as stop:
        if isinstance(stop, CancelledInUI):
            set_cancelled(stop.flow_run)
        print(str(stop) or "interrupted", file=sys.stderr)
    except Exception as error:
        print(str(error).strip() or type(error).__name__, file=sys.stderr)
    return 1


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt("ended by the run it belongs to")


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
    ways = Counter(fit.stage for fit in fits)  # one that is not the same in every arm names them
    by_arm = [
        replace(fit, stage=f"{fit.stage} of {', '.join(dict.fromkeys(arms))}")
        if ways[fit.stage] > 1
        else fit
        for fit, arms in fits.items()
    ]
    return Plan(stages, matrix[0][2].topology, by_arm)


def _planned(spec: Ablation, settings: Pipeline, store: Store) -> list[PlannedStage]:
    planner = Planner(Run(store=store, seed=settings.seed), settings.topology, settings.base)
    return plan_stages(needed(f"evaluate_{spec.scored}", calls(settings)), planner)


def meanings(settings: Pipeline, scored: str) -> list[str]:
    """A digest of each needed stage over all that its result depends on, computed or not."""
    found: dict[str, str] = {}
    for call in needed(f"evaluate_{scored}", calls(settings)):
        seed = settings.seed if call.stage.takes_seed else None
        inputs = [found[name] for name in call.inputs]
        meaning = json.dumps([call.stage.name, key_of(call.settings), seed, inputs])
        found[call.stage.name] = hashlib.sha256(meaning.encode()).hexdigest()
    return list(found.values())


def _with_runs(why: str, runs: list[str]) -> str:
    shared = runs[0] if len(runs) == 1 else f"shared by {len(runs)} runs from {runs[0]}"
    return f"{shared}; {why}" if why else shared


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
