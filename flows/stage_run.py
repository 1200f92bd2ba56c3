"""One stage of the pipeline, run alone: the same store, key and MLflow as in a whole run."""

import json
from collections.abc import Mapping
from typing import Any

from prefect.artifacts import create_markdown_artifact

from configs.base import Settings, key_of
from configs.load import load_profile
from configs.machine import load_machine
from configs.settings import Pipeline
from eval.page_markdown import escape, with_inline_plots
from flows.approval import SAMPLING_STAGES, with_approval
from flows.inputs import chosen_inputs
from flows.pipeline import show_mlflow, tell_plan
from flows.shown import shown
from flows.wiring import Call
from tasks.opening import Wanted, opened
from tasks.plan import PlannedStage, Planner
from tasks.run import Run, active
from tasks.shared_store import open_store
from tasks.store import Artifact


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
        inputs: stage → `latest`, `profile` or a key (see flows.inputs).
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
    keys = {n: f"{a.stage}/{a.key}" for n, a in sources.items()}
    wanted = Wanted(
        kind="stage",
        profile=whole.profile,
        seed=seed,
        meaning=json.dumps([name, key_of(settings), seed, [a.digest for a in taken]]),
        resolved={"stage": name, "seed": seed, "inputs": keys, **_resolved(settings)},
        stall_minutes=whole.stall_minutes,
        force=frozenset({name} if force else ()),
    )
    with opened(wanted) as run:
        for artifact in taken:
            run.store.fetch(artifact)
        tell_plan(lambda: _plan(call, taken, settings, whole, run), run)
        ask = name in SAMPLING_STAGES
        result = (
            with_approval(call.stage, *taken, settings=settings)  # type: ignore[arg-type]
            if ask
            else call.stage(*taken, settings=settings)
        )
        run.store.fetch(result)
        _show(result, run)
        return str(result.folder)


def _resolved(settings: Settings) -> dict[str, Any]:
    return {"settings": settings.model_dump(mode="json")}


def _plan(
    call: Call, inputs: tuple[Artifact, ...], settings: Settings, whole: Pipeline, run: Run
) -> list[PlannedStage]:
    planner = Planner(whole.topology, whole.base)
    looking = Run(store=run.store, seed=run.seed, force=run.force, planner=planner)
    with active(looking):
        call.stage(*inputs, settings=settings)
    return planner.stages


def _show(result: Artifact, run: Run) -> None:
    """Where to look: the run in MLflow, the figures, and the page if the stage wrote one."""
    page = result.folder / "report.md"
    lines = [f"| {escape(n)} | {v:g} |" for n, v in result.metrics.items()]
    figures = "\n".join([f"`{result.stage}/{result.key}`", "", "| | |", "|---|---|", *lines])
    text = with_inline_plots(page.read_text(), result.folder) if page.exists() else figures
    shown(create_markdown_artifact, key="klear-result", markdown=text, description=result.stage)
    show_mlflow(run)
