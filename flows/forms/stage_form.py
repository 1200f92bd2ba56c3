"""The form that runs one stage alone, on the results of a run that is complete.

Its inputs are of one ancestry, so that a score and the curve beside it are of the same model. Other
inputs may be named one by one; what does not belong together is refused unless it is asked for.
"""

import json
from collections.abc import Sequence
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from klear.configs.machine import load_machine
from klear.configs.settings.base import first_few, key_of, short
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline, StageName
from klear.flows.cli.plan import Plan
from klear.flows.forms.profile_form import offered, settings_of
from klear.flows.pipeline import publish_markdown, publish_plan, run_spec, typed_name
from klear.flows.stages import calls, compute_one, plan_stages
from klear.tasks.planning.plan import Planner
from klear.tasks.report.page import literal, with_inline_plots
from klear.tasks.stage.progress import number
from klear.tasks.stage.run import run_context
from klear.tasks.store.lineage import LATEST, as_of, begins, family, mixtures
from klear.tasks.store.shared import open_store
from klear.tasks.store.store import Artifact, Manifest, Store
from klear.tasks.tracking.prefect_states import ends_cancelled

ProfileName = Annotated[str, Field(json_schema_extra={"enum": [*offered()]})]


def _name() -> str:
    """The name that was typed in the form, else `tiny-seed0 · sft · sft.epochs=2, as of …`."""
    asked = flow_run.parameters
    lines = [line.strip() for line in asked["changes"].splitlines()]
    changed = ", ".join(first_few([short(s) for s in lines if s and not s.startswith("#")]))
    of = "" if asked["inputs_as_of"] == LATEST else f"as of {asked['inputs_as_of']}"
    parts = f"{asked['profile']}-seed{asked['seed']}", asked["stage"], changed, of
    return typed_name() or " · ".join(filter(None, parts))


@flow(name="klear", flow_run_name=_name)
@ends_cancelled
def stage(
    profile: ProfileName = "tiny",
    stage: StageName = "report",
    changes: str = "",
    inputs_as_of: str = LATEST,
    other_inputs: str = "",
    mixed: bool = False,
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0,
    force: bool = False,
) -> str:
    """One stage of a profile on the results of a complete run. Returns its result's folder.

    Args:
        profile: Whose settings, unless changed.
        stage: The one to run.
        changes: Settings that differ from the profile's, one a line as `sft.epochs=2`.
        inputs_as_of: Whose results it takes: `latest`, the last complete run of profile and seed;
            the name or id of a run; or a result, `report/0a1b2c`, and what it was made from.
        other_inputs: Results that it takes instead, one a line as `evaluate_sft=0a1b2c`.
        mixed: Allow inputs that do not belong together; the page says which.
        seed: Of every random stage.
        force: Compute even if the store has this result.
    """
    whole = settings_of(offered()[profile], {}, changes, seed)
    graph = calls(whole)
    if stage not in graph:
        raise ConfigError([f"stage: the profile {whole.profile} has no {stage}"])
    call, store = graph[stage], open_store(load_machine())
    taken = chosen(call.inputs, inputs_as_of, whole, other_inputs, store)
    strangers = mixtures(store, [*taken.values()])
    if strangers and not mixed:
        said = "; ".join(strangers)
        raise ConfigError([f"inputs: of different runs: {said}. Tick mixed if that is meant"])
    keys = {name: f"{m.stage}/{m.key}" for name, m in taken.items()}
    said = {"stage": stage, "inputs": keys, "settings": call.settings.model_dump(mode="json")}
    meaning = json.dumps([stage, key_of(call.settings), seed, [m.digest for m in taken.values()]])
    asked = {"resolved": {**said, "seed": seed}, "force": frozenset({stage} if force else ())}
    with run_context(run_spec(whole, "stage", meaning, **asked)) as run:
        run.mixed[:] = strangers
        made = {name: usable(run.store, m) for name, m in taken.items()}
        planner = Planner(run, whole.topology, whole.base)
        lines = [*(f"> **Mixed**: {line}\n" for line in strangers), f"`{stage}` of"]
        head = "\n".join([*lines, *(f"- `{key}`" for key in keys.values())]) if keys else ""
        publish_plan(Plan(plan_stages([call], planner, made=made), whole.topology), run, head)
        result = compute_one(call, *made.values())
        run.store.fetch(result)
        publish_markdown("klear-result", _summary(result, head))
        return str(result.folder)


def _summary(result: Artifact, head: str) -> str:
    """The page that the stage wrote, or its figures, below what it was made from."""
    page = result.folder / "report.md"
    if page.exists():
        return f"{head}\n\n{with_inline_plots(page.read_text(), result.folder)}"
    lines = [f"| {literal(n)} | {number(n, v)} |" for n, v in result.metrics.items()]
    return "\n".join([head, "", f"`{result.stage}/{result.key}`", "", "| | |", "|---|---|", *lines])


def usable(store: Store, result: Manifest) -> Artifact:
    """The result with its files here; raises ConfigError where they are gone or damaged."""
    artifact, wrong = store.find(result.stage, result.key)
    if artifact is None:
        raise ConfigError([f"inputs: {result.stage}/{result.key}: {wrong or 'it is gone'}"])
    store.fetch(artifact)
    return artifact


def chosen(
    needed: Sequence[str], which: str, settings: Pipeline, others: str, store: Store
) -> dict[str, Manifest]:
    """The results that a stage takes, by stage: those of the run that `which` means, but for the
    lines `stage=key` of `others`. Raises ConfigError with what there is."""
    pairs = (line.partition("=") for line in others.split())
    found = {stage: begins(store, stage, digits) for stage, _, digits in pairs}
    if unknown := [*(found.keys() - {*needed})]:
        raise ConfigError([f"inputs: {unknown[0]} is not taken; the stage takes {needed}"])
    if missing := [name for name in needed if name not in found]:
        run = family(store, as_of(store, which, settings.profile, settings.seed))
        if lost := [name for name in missing if name not in run]:
            raise ConfigError([f"as_of: {which} has no {', '.join(lost)}, only {', '.join(run)}"])
        found |= {name: run[name] for name in missing}
    return {name: found[name] for name in needed}
