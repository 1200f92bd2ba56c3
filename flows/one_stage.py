"""One stage of the pipeline, run alone: the same store, key and MLflow as in a whole run."""

import json
from collections.abc import Mapping
from dataclasses import replace

from prefect.artifacts import create_markdown_artifact

from configs.loading import load_profile
from configs.machine import load_machine
from configs.settings.base import Settings, key_of
from configs.settings.pipeline import Pipeline
from flows.forms.artifacts import create_artifact
from flows.forms.inputs import chosen_inputs
from flows.pipeline import publish_plan, show_mlflow
from flows.stages import Call
from tasks.planning.plan import PlannedStage, Planner
from tasks.report.page import literal, with_inline_plots
from tasks.stage.run import Run
from tasks.stage.run_context import RunSpec, run_context
from tasks.store.shared import open_store
from tasks.store.store import Artifact


def run_stage(
    call: Call,
    settings: Settings,
    *,
    inputs: Mapping[str, str],
    seed: int,
    profile: str,
    force: bool = False,
) -> str:
    """Compute or reuse one stage; returns the folder of its result.

    Args:
        call: the stage, as the profile's flow calls it.
        settings: of the stage.
        inputs: stage → `latest`, `profile` or a key (see flows.forms.inputs).
        seed: of the stage, where it takes one.
        profile: name or file; whose MLflow experiment the run belongs to.
        force: compute even if the store has the result.

    Raises:
        ConfigError: an input is not there. Nothing has been started then.
    """
    name = call.stage.name
    whole = load_profile(profile, [f"seed={seed}"])
    sources = chosen_inputs(inputs, open_store(load_machine()), whole)
    taken = tuple(sources[n] for n in call.inputs)
    asked = {
        "stage": name,
        "seed": seed,
        "inputs": {n: f"{a.stage}/{a.key}" for n, a in sources.items()},
        "settings": settings.model_dump(mode="json"),
    }
    wanted = RunSpec(
        kind="stage",
        profile=whole.profile,
        seed=seed,
        meaning=json.dumps([name, key_of(settings), seed, [a.digest for a in taken]]),
        resolved=asked,
        stall_minutes=whole.stall_minutes,
        force=frozenset({name} if force else ()),
    )
    with run_context(wanted) as run:
        for artifact in taken:
            run.store.fetch(artifact)
        asked_for = replace(call, settings=settings)
        publish_plan(lambda: _plan(asked_for, taken, whole, run), run)
        result = asked_for.compute(*taken)
        run.store.fetch(result)
        _show(result, run)
        return str(result.folder)


def _plan(
    call: Call, inputs: tuple[Artifact, ...], whole: Pipeline, run: Run
) -> list[PlannedStage]:
    planner = Planner(run, whole.topology, whole.base)
    planner.look(call.stage, inputs, call.settings)
    return planner.stages


def _show(result: Artifact, run: Run) -> None:
    """Where to look: the run in MLflow, the figures, and the page if the stage wrote one."""
    page = result.folder / "report.md"
    lines = [f"| {literal(n)} | {v:g} |" for n, v in result.metrics.items()]
    figures = "\n".join([f"`{result.stage}/{result.key}`", "", "| | |", "|---|---|", *lines])
    text = with_inline_plots(page.read_text(), result.folder) if page.exists() else figures
    create_artifact(
        create_markdown_artifact, key="klear-result", markdown=text, description=result.stage
    )
    show_mlflow(run)
