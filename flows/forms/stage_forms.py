"""One Prefect flow a stage, for the form that runs this stage alone: same store, key and MLflow.

`flows.forms.stage_forms.stage_sft` is made when it is asked for: a worker that runs one stage does
not wait for the forms of all. The form has the stage's settings, one field per input, and the seed
where the stage takes one; the server refuses what does not fit before anything starts.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from prefect import Flow
from prefect.runtime import flow_run
from pydantic import BaseModel, Field, create_model
from pydantic_core import to_jsonable_python

from configs.loading import changed_words, load_profile
from configs.machine import load_machine
from configs.settings.base import Settings, key_of
from configs.settings.explain import ConfigError
from configs.settings.pipeline import STAGES
from flows.cli.plan import Plan
from flows.pipeline import publish_markdown, publish_plan, run_spec
from flows.stages import Call, calls, plan_stages
from tasks.planning.plan import Planner
from tasks.report.page import literal, with_inline_plots
from tasks.stage.run import run_context
from tasks.store.care import results
from tasks.store.shared import open_store
from tasks.store.store import Artifact, Store

PREFIX = "stage_"
LATEST = "latest"
PATTERN = f"^({LATEST}|[0-9a-f]{{6,64}})$"
_WHICH = f"`{LATEST}`: the newest result; or the first digits of a key (`klear store ls`)"
_ABOUT = """
Args:
    settings: What the stage computes; runtime settings say how.
    inputs: Upstream results to use.
    seed: Random seed.
    force: Compute even if the store has this result.
"""


def __getattr__(name: str) -> Flow[..., str]:
    stage = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and stage in STAGES:
        return form(stage)
    raise AttributeError(name)


@cache
def form_calls() -> dict[str, Call]:
    """The stages that have a form: those of the profile the forms begin with."""
    return calls(load_profile(load_machine().form_profile))


@cache
def form(stage: str) -> Flow[..., str]:
    """The flow behind the form of one stage; KeyError if the form profile lacks it."""
    call = form_calls()[stage]

    def run(**given: Any) -> str:
        return run_stage(call, **given)

    run.__name__ = run.__qualname__ = f"{PREFIX}{stage}"
    run.__module__ = __name__
    run.__doc__ = f"{inspect.getdoc(call.stage.body)}\n\n{_ABOUT}"
    run.__signature__ = inspect.Signature([*_fields(call)])  # type: ignore[attr-defined]
    return Flow(run, name="klear-stage", flow_run_name=lambda: _run_name(call))


def values(stage: str) -> dict[str, Any]:
    """What the form begins with."""
    return {field.name: to_jsonable_python(field.default) for field in _fields(form_calls()[stage])}


def _fields(call: Call) -> Iterator[inspect.Parameter]:
    """Each field with its type and what it begins with."""
    field = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    yield field("settings", annotation=type(call.settings), default=call.settings)
    if call.inputs:
        which: dict[str, Any] = {
            name: (Annotated[str, Field(title=f"Result of {name}", pattern=PATTERN)], LATEST)
            for name in call.inputs
        }
        inputs = create_model("Inputs", __base__=Settings, __doc__=_WHICH, **which)
        yield field("inputs", annotation=inputs, default=inputs())
    if call.stage.takes_seed:
        yield field("seed", annotation=Annotated[int, Field(ge=0)], default=0)
    yield field("force", annotation=bool, default=False)


def _run_name(call: Call) -> str:
    """`tiny-seed0 · sft`, and what differs from the profile's settings and the latest inputs."""
    asked = to_jsonable_python(flow_run.parameters)
    changed = changed_words(type(call.settings).model_validate(asked["settings"]), call.settings)
    changed += [f"{n}={w[:8]}" for n, w in asked.get("inputs", {}).items() if w != LATEST]
    seed = f"-seed{asked['seed']}" if "seed" in asked else ""
    profile = Path(load_machine().form_profile).stem
    return " · ".join(filter(None, [f"{profile}{seed}", call.stage.name, ", ".join(changed)]))


def run_stage(
    call: Call,
    settings: Settings,
    *,
    inputs: BaseModel | None = None,
    seed: int = 0,
    force: bool = False,
) -> str:
    """Compute or reuse one stage on the results that `inputs` name; returns its result's folder.

    Raises ConfigError where an input is not there. Nothing has been started then.
    """
    name, machine = call.stage.name, load_machine()
    whole = load_profile(machine.form_profile, [f"seed={seed}"])
    taken = chosen_inputs(inputs.model_dump() if inputs else {}, open_store(machine))
    digests = [artifact.digest for artifact in taken.values()]
    keys = {stage: f"{stage}/{artifact.key}" for stage, artifact in taken.items()}
    said = {"settings": settings.model_dump(mode="json")}
    resolved = {"stage": name, "seed": seed, "inputs": keys, **said}
    meaning = json.dumps([name, key_of(settings), seed, digests])
    asked = {"resolved": resolved, "force": frozenset({name} if force else ())}
    with run_context(run_spec(whole, "stage", meaning, **asked)) as run:
        for artifact in taken.values():
            run.store.fetch(artifact)
        call = replace(call, settings=settings)
        planner = Planner(run, whole.topology, whole.base)
        publish_plan(Plan(plan_stages([call], planner, made=taken), whole.topology), run)
        result = call.compute(*taken.values())
        run.store.fetch(result)
        publish_markdown("klear-result", _summary(result))
        return str(result.folder)


def _summary(result: Artifact) -> str:
    """The page that the stage wrote, or its figures."""
    page = result.folder / "report.md"
    if page.exists():
        return with_inline_plots(page.read_text(), result.folder)
    lines = [f"| {literal(n)} | {v:g} |" for n, v in result.metrics.items()]
    return "\n".join([f"`{result.stage}/{result.key}`", "", "| | |", "|---|---|", *lines])


def chosen_inputs(wanted: Mapping[str, str], store: Store) -> dict[str, Artifact]:
    """The results that `wanted` (stage → which) names, in its order.

    `latest` is the newest result of the stage in the store, also of a shared one, whoever made it
    and wherever; else the first digits of a key name one. Raises ConfigError.
    """
    found: dict[str, Artifact] = {}
    for stage, which in wanted.items():
        there = [m.key for m in results(store, stage)]
        keys = there[-1:] if which == LATEST else [k for k in there if k.startswith(which)]
        artifact, wrong = store.find(stage, keys[0]) if len(keys) == 1 else (None, "")
        if artifact is None:
            several = f"{which} is the beginning of several: {', '.join(keys)}"
            none = f"there is no {stage}/{which}; `klear store ls` says what there is"
            raise ConfigError([f"inputs.{stage}: {wrong or (several if keys else none)}"])
        found[stage] = artifact
    return found
