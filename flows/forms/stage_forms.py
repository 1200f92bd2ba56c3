"""One Prefect flow a stage, for the form that runs this stage alone: same store, key and MLflow.

`flows.forms.stage_forms.stage_sft` is made when it is asked for: a worker that runs one stage does
not wait for the forms of all. The form has the stage's settings, one field per input, and the seed
where the stage takes one; the server refuses what does not fit before anything starts.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from prefect import Flow
from prefect.runtime import flow_run
from pydantic import ConfigDict, Field, create_model

from configs.loading import changed_words, load_profile
from configs.machine import load_machine
from configs.settings.base import Settings, key_of
from configs.settings.explain import ConfigError
from configs.stage_names import STAGES
from flows.cli.plan import Plan
from flows.run_page import publish_markdown, publish_plan
from flows.stages import Call, calls, plan_stages
from tasks.planning.plan import Planner
from tasks.report.page import literal, with_inline_plots
from tasks.stage.run_context import RunSpec, run_context
from tasks.store.care import results
from tasks.store.shared import open_store
from tasks.store.store import Artifact, Store

PREFIX = "stage_"
LATEST = "latest"
PATTERN = f"^({LATEST}|[0-9a-f]{{6,64}})$"
_WHICH = (
    f"`{LATEST}`: the newest result in the store; or the first digits of a key or digest "
    "(`klear store ls`)"
)
_ABOUT = """
Args:
    settings: What the stage computes; runtime settings say how.
    inputs: Upstream results to use.
    seed: Random seed.
    profile: Its MLflow experiment records this run; the settings stay as this form says.
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
    signature = _signature(call)

    def run(*args: Any, **kwargs: Any) -> str:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        asked = {"seed": 0, **given.arguments}
        inputs = asked.pop("inputs", None)
        return run_stage(
            call, asked.pop("settings"), inputs=inputs.model_dump() if inputs else {}, **asked
        )

    run.__name__ = run.__qualname__ = f"{PREFIX}{stage}"
    run.__module__ = __name__
    run.__doc__ = f"{inspect.getdoc(call.stage.body)}\n\n{_ABOUT}"
    run.__signature__ = signature  # type: ignore[attr-defined]
    return Flow(run, name="klear-stage", flow_run_name=lambda: _run_name(call))


def values(stage: str) -> dict[str, Any]:
    """What the form begins with."""
    call = form_calls()[stage]
    begins: dict[str, Any] = {"settings": call.settings.model_dump(mode="json")}
    if call.inputs:
        begins["inputs"] = dict.fromkeys(call.inputs, LATEST)
    if call.stage.takes_seed:
        begins["seed"] = 0
    return {**begins, "profile": load_machine().form_profile, "force": False}


def _signature(call: Call) -> inspect.Signature:
    fields: dict[str, tuple[Any, Any]] = {
        "settings": (type(call.settings), inspect.Parameter.empty)
    }
    if call.inputs:
        which: dict[str, Any] = {
            name: (Annotated[str, Field(title=f"Result of {name}", pattern=PATTERN)], LATEST)
            for name in call.inputs
        }
        strict = ConfigDict(extra="forbid", frozen=True)
        inputs = create_model("Inputs", __config__=strict, __doc__=_WHICH, **which)
        fields["inputs"] = (inputs, inputs())
    if call.stage.takes_seed:
        fields["seed"] = (Annotated[int, Field(ge=0)], 0)
    fields |= {"profile": (str, load_machine().form_profile), "force": (bool, False)}
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(name, either, annotation=kind, default=default)
            for name, (kind, default) in fields.items()
        ]
    )


def _run_name(call: Call) -> str:
    """`tiny-seed0 · sft`, and what differs from the profile's settings and the latest inputs."""
    asked = flow_run.parameters
    settings = type(call.settings).model_validate(asked["settings"])
    inputs = asked.get("inputs") or {}
    which = inputs if isinstance(inputs, dict) else inputs.model_dump()
    changed = changed_words(settings, call.settings)
    changed += [f"{n}={w[:8]}" for n, w in which.items() if w != LATEST]
    seed = f"-seed{asked['seed']}" if "seed" in asked else ""
    words = [f"{Path(asked['profile']).stem}{seed}", call.stage.name, ", ".join(changed)]
    return " · ".join(filter(None, words))


def run_stage(
    call: Call,
    settings: Settings,
    *,
    inputs: Mapping[str, str],
    seed: int,
    profile: str,
    force: bool,
) -> str:
    """Compute or reuse one stage on the results that `inputs` name; returns its result's folder.

    Raises ConfigError where an input is not there. Nothing has been started then.
    """
    name = call.stage.name
    whole = load_profile(profile, [f"seed={seed}"])
    taken = chosen_inputs(inputs, open_store(load_machine()))
    asked = {
        "stage": name,
        "seed": seed,
        "inputs": {n: f"{a.stage}/{a.key}" for n, a in taken.items()},
        "settings": settings.model_dump(mode="json"),
    }
    digests = [artifact.digest for artifact in taken.values()]
    wanted = RunSpec(
        kind="stage",
        profile=whole.profile,
        seed=seed,
        meaning=json.dumps([name, key_of(settings), seed, digests]),
        resolved=asked,
        stall_minutes=whole.stall_minutes,
        force=frozenset({name} if force else ()),
    )
    with run_context(wanted) as run:
        for artifact in taken.values():
            run.store.fetch(artifact)
        call = replace(call, settings=settings)
        planner = Planner(run, whole.topology, whole.base)
        publish_plan(lambda: Plan(plan_stages([call], planner, made=taken), whole.topology), run)
        result = call.compute(*taken.values())
        run.store.fetch(result)
        publish_markdown("klear-result", _summary(result), run)
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
    and wherever; else the first digits of a key or content digest name one.

    Raises ConfigError with one line for every input that is not there.
    """
    found: dict[str, Artifact] = {}
    problems: list[str] = []
    for stage, which in wanted.items():
        there = [result.manifest for result in results(store, stage)]
        if which == LATEST:
            keys = [there[-1].key] if there else []
        else:
            begun = (m.key for m in there if m.digest.startswith(which) or m.key.startswith(which))
            damaged = (path.name for path in (store.root / stage).glob(f"{which}*"))
            keys = sorted({*begun, *damaged})
        artifact, wrong = store.find(stage, keys[0]) if len(keys) == 1 else (None, "")
        if artifact is not None:
            found[stage] = artifact
        elif len(keys) > 1:
            wrong = f"{which} is the beginning of several: {', '.join(keys)}"
        elif which == LATEST and not keys:
            wrong = f"the store has no result of {stage}; run it first"
        if artifact is None:
            wrong = wrong or f"there is no {stage}/{which}; `klear store ls` says what there is"
            problems.append(f"inputs.{stage}: {wrong}")
    if problems:
        raise ConfigError(problems)
    return found
