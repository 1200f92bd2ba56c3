"""One stage of a profile on results that are there: those of a complete run, unless others are
named. What does not belong together is refused unless it is asked for.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..configs.loading import Profile, read_profile
from ..configs.machine import load_machine
from ..configs.settings.base import key_of
from ..configs.settings.explain import ConfigError
from ..configs.settings.pipeline import Pipeline
from ..tasks.observe.prefect import show_markdown
from ..tasks.observe.run_context import run_context
from ..tasks.report.figures import number
from ..tasks.report.page import literal, with_inline_plots
from ..tasks.store.lineage import ancestry, find_by_prefix, provenance_conflicts, resolve_run
from ..tasks.store.shared import open_store
from ..tasks.store.store import Artifact, Manifest, Store
from .dag import build_dag
from .plan import plan
from .request import Request
from .run import compute_one, publish_plan, run_spec


def run_stage(
    profile: str,
    stage: str,
    changes: Sequence[str],
    inputs_as_of: str,
    other_inputs: str,
    *,
    mixed: bool,
    seed: int,
    force: bool,
) -> str:
    """The folder of the stage's result, reused or computed."""
    file = read_profile(profile)
    lines = [*changes, f"seed={seed}"]
    request = Request.from_profile(file, lines)
    settings = request.settings
    dag = build_dag(settings)
    if stage not in dag:
        raise ConfigError([f"stage: the profile {settings.profile} has no {stage}"])
    call, store = dag[stage], open_store(load_machine())
    inputs = chosen(call.inputs, inputs_as_of, settings, other_inputs, store)
    if idle := idle_lines(file, stage, lines):
        fix = "run the stage that it changes, and name its result in other_inputs"
        raise ConfigError(f"changes: {line} changes nothing in {stage}; {fix}" for line in idle)
    strangers = provenance_conflicts(store, [*inputs.values()])
    if strangers and not mixed:
        conflicts = "; ".join(strangers)
        raise ConfigError([f"inputs: of different runs: {conflicts}. Tick mixed if that is meant"])
    keys = {name: f"{m.stage}/{m.key}" for name, m in inputs.items()}
    resolved: dict[str, Any] = {"stage": stage, "inputs": keys, "seed": seed}
    resolved["settings"] = call.settings.model_dump(mode="json")
    meaning = json.dumps([stage, key_of(call.settings), seed, [m.digest for m in inputs.values()]])
    fields = {"force": frozenset({stage} if force else ()), "mixed": tuple(strangers)}
    with run_context(run_spec(request, "stage", meaning, resolved=resolved, **fields)) as run:
        artifacts = {name: usable(run.store, m) for name, m in inputs.items()}
        banner = "\n".join(f"> **Mixed**: {line}\n" for line in strangers)
        taken = f"`{stage}` of {', '.join(f'`{key}`' for key in keys.values())}" if keys else ""
        planned = plan(settings, run, calls=[call], results=artifacts)
        publish_plan(planned, run, f"{banner}\n{taken}")
        result = compute_one(call, *artifacts.values())
        run.store.fetch(result)
        run.tracker.log(run.run_id, result.metrics)
        show_markdown("klear-result", f"{banner}\n{_summary(result)}\n\n{taken}")
        return str(result.folder)


def idle_lines(profile: Profile, stage: str, lines: Sequence[str]) -> list[str]:
    """The changes that do nothing in the stage: they are of the stages before it."""

    def with_call(lines: Sequence[str]) -> tuple[Any, Any]:
        with suppress(ConfigError):
            settings = profile.pipeline(lines)
            return settings, build_dag(settings).get(stage)
        return None, None

    settings, call = with_call(lines)
    idle = list[str]()
    for line in lines:
        other, own = with_call([x for x in lines if x != line])
        if other != settings and own == call and not line.startswith(EVERYWHERE):
            idle.append(line)
    return idle


EVERYWHERE = ("stall_minutes", "topology", "seed")
"""Settings of a run, whatever its stages are."""


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
