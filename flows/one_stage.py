"""One stage of a profile on results that are there: those of a complete run, unless others are
named. What does not belong together is refused unless it is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..configs.loading import Request, read_profile
from ..configs.machine import load_machine
from ..configs.settings.base import first_few, flat, key_of
from ..configs.settings.explain import ConfigError
from ..configs.settings.pipeline import Pipeline, group_of_stage
from ..tasks.engine.events import Task
from ..tasks.engine.run import Run
from ..tasks.engine.why import differences
from ..tasks.observe.prefect import show
from ..tasks.observe.registry import log_origins
from ..tasks.observe.run_context import run_context
from ..tasks.report.figures import number
from ..tasks.report.page import literal, with_inline_plots
from ..tasks.store.lineage import (
    EVALUATION,
    LATEST,
    CompleteRun,
    ancestry,
    find_by_prefix,
    provenance_conflicts,
    resolve_run,
    run_of,
)
from ..tasks.store.shared import open_store
from ..tasks.store.store import Artifact, Manifest, Store
from .dag import Dag, StageCall, build_dag
from .plan import Plan, plan
from .run import (
    compute_one,
    lines_by_stage,
    log_accuracy,
    publish_plan,
    rerun_fields,
    run_spec,
    show_plan,
)


@dataclass(frozen=True)
class Inputs:
    """What one stage of a request takes, and whose results these are."""

    request: Request
    dag: Dag
    manifests: dict[str, Manifest]
    """By the stages that the stage takes results of."""
    which: str
    """As somebody named the run: `latest`, a name, an id, or stage/key."""
    run: CompleteRun | None = None
    """The run that this means, where it is a complete one."""
    foreign: tuple[str, ...] = ()
    """Settings that the inputs were made with and the request does not have."""
    unasked: tuple[str, ...] = ()
    """With such inputs: settings that the run has in this stage, too, the profile has not
    and nobody changed."""

    @property
    def name(self) -> str:
        return self.run.name if self.run else self.which

    @property
    def is_named(self) -> bool:
        """Whether it must be said whose results these are: not those of the profile as it stands,
        or of a run that somebody chose."""
        return bool(self.foreign) or self.which != LATEST

    def described(self, url: str) -> str:
        """A sentence about them with a link to their run."""
        keys = ", ".join(first_few([f"`{m.stage}/{m.key}`" for m in self.manifests.values()]))
        if not keys:
            return ""
        source = ""
        if self.run:
            page = f"{url}/runs/flow-run/{self.run.flow_run}"
            source = f", results of [{literal(self.name)}]({page})"
        lines = "; ".join(map(str, map(literal, first_few(self.foreign))))
        differs = f", which is not the profile as it stands ({lines})" if lines else ""
        return f"Takes {keys}{source}{differs}."


def choose_inputs(
    profile: str, stage: str, changes: Sequence[str], which: str, others: str, seed: int
) -> Inputs:
    """The inputs of a stage of a profile with these changes; raises ConfigError where there are
    none."""
    file, store, own_seed = read_profile(profile), open_store(load_machine()), f"seed={seed}"
    request = Request.from_profile(file, [*changes, own_seed])
    settings, dag = request.settings, build_dag(request.settings)
    if stage not in dag:
        raise ConfigError([f"stage: the profile {settings.profile} has no {stage}"])
    call = dag[stage]
    manifests = chosen(call.inputs, which, settings, others, store)
    ancestors = [m for one in manifests.values() for m in ancestry(store, one).values()]
    upstream = {f"{m.stage}/{m.key}": m for m in ancestors if m.stage in dag}
    foreign = [line for m in upstream.values() for line in other_settings(m, dag[m.stage])]
    chosen_alone = {line.partition("=")[0] for line in others.split()}
    run, unasked = None, list[str]()
    if not chosen_alone >= {*call.inputs}:
        result = resolve_run(store, which, settings.profile, settings.seed)
        run, own = run_of(store, result), ancestry(store, result).get(stage)
        if own and foreign and not stage.startswith((EVALUATION, "report")):
            plain = build_dag(file.pipeline([own_seed])).get(stage, call)
            unasked = [d for d in other_settings(own, call) if d in other_settings(own, plain)]
    return Inputs(request, dag, manifests, which, run, tuple(foreign), tuple(unasked))


def other_settings(result: Manifest, call: StageCall) -> list[str]:
    """What a result was made with that a call has not: `rl_math.loss.name: cispo → gppo`."""
    task = Task(result.stage, result.version, "", (), call.settings)
    written = flat(result.settings) | flat(call.settings.model_dump(mode="json"))
    lines = differences(result, task)  # also of fields that a manifest has by another name
    return [f"{result.stage}.{line}" for line in lines if line.partition(":")[0] in written]


def resolved_settings(
    settings: Pipeline, call: StageCall, inputs: Mapping[str, Manifest], store: Store
) -> dict[str, Any]:
    """What MLflow compares the run by, under the names of a pipeline: the settings of the stage,
    those that its inputs were made with, and for the rest the profile's."""
    resolved = settings.model_dump(mode="json")
    made_with = {n: m for one in inputs.values() for n, m in ancestry(store, one).items()}
    for stage, result in made_with.items():
        if resolved.get(group := group_of_stage(stage)):
            resolved[group] = result.settings
    return resolved | {group_of_stage(call.stage.name): call.settings.model_dump(mode="json")}


def run_stage(
    profile: str,
    stage: str,
    changes: Sequence[str],
    inputs_as_of: str,
    other_inputs: str,
    plan_only: bool = False,
    *,
    mixed: bool,
    seed: int,
    force: bool,
) -> str:
    """The folder of the stage's result, reused or computed."""
    taken = choose_inputs(profile, stage, changes, inputs_as_of, other_inputs, seed)
    request, inputs, call = taken.request, taken.manifests, taken.dag[stage]
    machine = load_machine()
    store = open_store(machine)
    if idle := idle_lines(request, stage):
        fix = "run the stage that it changes, and name its result in other_inputs"
        raise ConfigError(f"changes: {line} changes nothing in {stage}; {fix}" for line in idle)
    strangers = provenance_conflicts(store, [*inputs.values()])
    if taken.unasked:
        strangers += [f"{taken.name} has other settings: {'; '.join(first_few(taken.unasked))}"]
    if strangers and not mixed:
        conflicts = "; ".join(strangers)
        fix = "Write those of that run in changes, or tick mixed" if taken.unasked else "Tick mixed"
        raise ConfigError([f"inputs: of different runs: {conflicts}. {fix} if that is meant"])
    keys = {name: f"{m.stage}/{m.key}" for name, m in inputs.items()}
    resolved = resolved_settings(request.settings, call, inputs, store)
    resolved |= {"stage": stage, "inputs": keys}
    meaning = json.dumps([stage, key_of(call.settings), seed, [m.digest for m in inputs.values()]])
    banner = "\n".join(f"> **Mixed**: {line}\n" for line in strangers)
    head = f"{banner}\n{taken.described(machine.prefect_url)}"
    forced = frozenset({stage} if force else ())

    def planned(run: Run) -> tuple[Plan, dict[str, Artifact]]:
        artifacts = {name: usable(run.store, m) for name, m in inputs.items()}
        return plan(request.settings, run, calls=[call], results=artifacts), artifacts

    if plan_only:
        return show_plan(planned(Run(store=store, seed=seed, force=forced))[0], head)
    named = (("inputs_as_of", taken.name),) if taken.is_named else ()
    spec = run_spec(
        request, "stage", meaning, resolved=resolved, force=forced, mixed=tuple(strangers),
        changed=(*request.changed, *named), rerun=rerun_fields(request, {stage: changes}),
    )  # fmt: skip
    with run_context(spec) as run:
        stages, artifacts = planned(run)
        publish_plan(stages, run, head)
        result = compute_one(call, *artifacts.values())
        contexts = {**dict.fromkeys(inputs, "input"), stage: "output"}
        results = {**artifacts, stage: result}
        log_origins(run.tracker, run.run_id, results, run.store, contexts)
        run.store.fetch(result)
        log_accuracy(run, {stage: result}, request.settings, metrics=result.metrics)
        page = f"{banner}\n{_summary(result)}\n\n{head}"
        show("markdown", "klear-result", page, "What it came to")
        return str(result.folder)


def idle_lines(request: Request, stage: str) -> list[str]:
    """The changes that do nothing in the stage: they are of the stages before it."""
    by_stage = lines_by_stage(request)
    every, own = dict.fromkeys(chain(*by_stage.values())), by_stage.get(stage, ())
    return [line for line in every if line not in own and not line.startswith("topology")]


def _summary(result: Artifact) -> str:
    """The page that the stage wrote, or its figures."""
    page = result.folder / "report.md"
    if page.exists():
        return with_inline_plots(page.read_text(), result.folder)
    lines = [f"| {literal(n)} | {number(n, v)} |" for n, v in result.metrics.items()]
    return "\n".join([f"`{result.stage}/{result.key}`", "", "| | |", "|---|---|", *lines])


def usable(store: Store, result: Manifest) -> Artifact:
    """The result with its files here; raises ConfigError where they are gone or damaged."""
    artifact, damage = store.find(result.stage, result.key)
    if artifact is None:
        raise ConfigError([f"inputs: {result.stage}/{result.key}: {damage or 'it is gone'}"])
    store.fetch(artifact)
    return artifact


def chosen(
    inputs: Sequence[str], which: str, settings: Pipeline, others: str, store: Store
) -> dict[str, Manifest]:
    """The results that a stage takes, by stage: those of the run that `which` means, but for the
    lines `stage=key` of `others`. Raises ConfigError with what there is."""
    pairs = (line.partition("=") for line in others.split())
    manifests = {stage: find_by_prefix(store, stage, digits) for stage, _, digits in pairs}
    if unknown := [*(manifests.keys() - {*inputs})]:
        raise ConfigError([f"inputs: {unknown[0]} is not taken; the stage takes {inputs}"])
    if missing := [name for name in inputs if name not in manifests]:
        run = ancestry(store, resolve_run(store, which, settings.profile, settings.seed))
        if lost := [name for name in missing if name not in run]:
            raise ConfigError([f"{which} has no {', '.join(lost)}, only {', '.join(run)}"])
        manifests |= {name: run[name] for name in missing}
    return {name: manifests[name] for name in inputs}
