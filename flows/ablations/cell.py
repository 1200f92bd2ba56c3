"""One cell of an experiment: one arm with one seed, and only the stages that its score needs.

As a process of its own (`python -m flows.ablations.cell NAME PROFILE ARM SEED PARENT RESULT`) it is
a flow run, in an MLflow run below PARENT, and the file RESULT holds the two artifacts it made.
"""

import hashlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from prefect import flow
from prefect.runtime import flow_run
from pydantic import TypeAdapter

from configs.settings.ablation import Ablation, load_ablation
from configs.settings.base import key_of
from configs.settings.pipeline import Pipeline
from flows.stages import calls, needed
from flows.stages import compute as compute_stages
from tasks.stage.run_context import RunSpec, run_context
from tasks.store.store import Artifact
from tasks.tracking.prefect_states import CancelledInUI, cancellable, set_cancelled
from training.sizing.fit import refuse

ARTIFACTS = TypeAdapter(tuple[Artifact, ...])
Matrix = list[tuple[str, int, Pipeline]]
"""(arm, seed, settings) of every cell."""


def cells(spec: Ablation, profile: str, seeds: int) -> Iterator[tuple[str, int, Pipeline]]:
    """(arm, seed, settings) of every run; a seed is finished before the next begins."""
    for seed in range(seeds):
        for arm in spec.arms:
            yield arm.name, seed, spec.settings(profile, arm.name, seed)


def label(arm: str, seed: int) -> str:
    """How a cell is called wherever it shows."""
    return f"{arm}-seed{seed}"


def compute(spec: Ablation, arm: str, settings: Pipeline, parent: str) -> tuple[Artifact, Artifact]:
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
    with run_context(wanted) as cell:
        evaluation, model = score(settings, spec.scored)
        cell.tracker.log(cell.run_id, evaluation.metrics)
    return evaluation, model


def score(settings: Pipeline, scored: str) -> tuple[Artifact, Artifact]:
    """The evaluation of one checkpoint and that checkpoint; nothing else is computed."""
    target = f"evaluate_{scored}"
    refuse(settings, target)
    made = compute_stages(needed(target, calls(settings)))
    return made[target], made[scored]


def meanings(settings: Pipeline, scored: str) -> list[str]:
    """A digest of each needed stage over all that its result depends on, computed or not."""
    found: dict[str, str] = {}
    for call in needed(f"evaluate_{scored}", calls(settings)):
        seed = settings.seed if call.stage.takes_seed else None
        inputs = [found[name] for name in call.inputs]
        meaning = json.dumps([call.stage.name, key_of(call.settings), seed, inputs])
        found[call.stage.name] = hashlib.sha256(meaning.encode()).hexdigest()
    return list(found.values())


@flow(name="klear-cell", flow_run_name="{experiment} · {arm}-seed{seed}")
def run_cell(
    experiment: str, file: str, profile: str, arm: str, seed: int, parent: str
) -> tuple[Artifact, Artifact]:
    """One arm of an experiment with one seed: the evaluation and the model it is of."""
    spec = load_ablation(file)
    with cancellable(str(flow_run.id)):
        return compute(spec, arm, spec.settings(profile, arm, seed), parent)


def main(file: str, profile: str, arm: str, seed: str, parent: str, result: str) -> int:
    """Exit code: 1 when it failed or was interrupted, else 0."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        made = run_cell(load_ablation(file).name, file, profile, arm, int(seed), parent)
        Path(result).write_bytes(ARTIFACTS.dump_json(made))
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
