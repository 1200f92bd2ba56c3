"""One cell of an experiment: one arm with one seed, and only the stages that its score needs."""

import hashlib
import json
from collections.abc import Iterator

from configs.ablation import Ablation
from configs.base import key_of
from configs.settings import Pipeline
from flows.approval import SAMPLING_STAGES, with_approval
from flows.wiring import Call, calls
from tasks.opening import Wanted, opened
from tasks.run import current_run
from tasks.store import Artifact
from training.fit import refuse

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
    wanted = Wanted(
        kind="cell",
        profile=settings.profile,
        seed=settings.seed,
        meaning=json.dumps([spec.name, arm, key_of(settings)]),
        resolved=settings.model_dump(mode="json"),
        stall_minutes=settings.stall_minutes,
        name=label(arm, settings.seed),
        parent=parent,
    )
    with opened(wanted) as cell:
        evaluation, model = score(settings, spec.scored)
        cell.tracker.log(cell.run_id, evaluation.metrics)
    return evaluation, model


def score(settings: Pipeline, scored: str) -> tuple[Artifact, Artifact]:
    """The evaluation of one checkpoint and that checkpoint; nothing else is computed."""
    target = f"evaluate_{scored}"
    if current_run().planner is None:
        refuse(settings, target)
    made: dict[str, Artifact] = {}
    for call in needed(target, calls(settings)):
        inputs = tuple(made[name] for name in call.inputs)
        if call.stage.name in SAMPLING_STAGES:
            result = with_approval(call.stage, *inputs, settings=call.settings)  # type: ignore[arg-type]
        else:
            result = call.stage(*inputs, settings=call.settings)
        made[call.stage.name] = result
    return made[target], made[scored]


def needed(target: str, graph: dict[str, Call]) -> list[Call]:
    """The stages that `target` is made from and itself, in the order of the flow."""
    wanted, open_ends = {target}, [target]
    while open_ends:
        for name in graph[open_ends.pop()].inputs:
            if name not in wanted:
                wanted.add(name)
                open_ends.append(name)
    return [call for name, call in graph.items() if name in wanted]


def meanings(settings: Pipeline, scored: str) -> list[str]:
    """A digest of each needed stage over all that its result depends on, computed or not."""
    found: dict[str, str] = {}
    for call in needed(f"evaluate_{scored}", calls(settings)):
        seed = settings.seed if call.stage.takes_seed else None
        inputs = [found[name] for name in call.inputs]
        meaning = json.dumps([call.stage.name, key_of(call.settings), seed, inputs])
        found[call.stage.name] = hashlib.sha256(meaning.encode()).hexdigest()
    return list(found.values())
