"""One Prefect flow a stage, for the form that runs this stage alone.

`flows.stage_forms.stage_sft` is made when it is asked for: a worker that runs one stage does not
wait for the forms of all. The form has the stage's settings, one field per input, and the seed
where the stage takes one; the server refuses what does not fit before anything starts.
"""

import inspect
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from prefect import Flow
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field, create_model

from configs.differences import changed_words
from configs.load import load_profile
from configs.machine import load_machine
from configs.stage_names import STAGES
from flows.inputs import LATEST, PATTERN, PROFILE
from flows.refused import name_refused
from flows.stage_run import run_stage
from flows.wiring import Call, calls

PREFIX = "stage_"
FLOW = "klear-stage"
_WHICH = (
    f"`{LATEST}`: the newest result in the store; `{PROFILE}`: the one that a whole run of the "
    "profile would use; or the first digits of a key or digest (`klear store ls`)"
)

_ABOUT = """
Args:
    settings: What the stage computes; runtime settings say how.
    inputs: Whose results it takes.
    seed: Of everything random in it.
    profile: Whose experiment in MLflow the run belongs to. The settings stay as this form says.
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
    signature = inspect.Signature(_parameters(call))

    def run(*args: Any, **kwargs: Any) -> str:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        asked = dict(given.arguments)
        inputs = asked.pop("inputs", None)
        return run_stage(
            call,
            asked.pop("settings"),
            inputs=inputs.model_dump() if inputs else {},
            seed=asked.pop("seed", 0),
            **asked,
        )

    run.__name__ = run.__qualname__ = f"{PREFIX}{stage}"
    run.__module__ = __name__
    run.__doc__ = f"{inspect.getdoc(call.stage.body)}\n\n{_ABOUT}"
    run.__signature__ = signature  # type: ignore[attr-defined]
    return Flow(run, name=FLOW, flow_run_name=lambda: _name(stage, call), on_failure=[name_refused])


def values(stage: str) -> dict[str, Any]:
    """What the form begins with."""
    call = form_calls()[stage]
    begins = {
        "settings": call.settings.model_dump(mode="json"),
        "profile": load_machine().form_profile,
        "force": False,
    }
    if call.inputs:
        begins["inputs"] = dict.fromkeys(call.inputs, LATEST)
    return begins | ({"seed": 0} if call.stage.takes_seed else {})


def _parameters(call: Call) -> list[inspect.Parameter]:
    found: list[tuple[str, Any, Any]] = [
        ("settings", type(call.settings), inspect.Parameter.empty),
    ]
    if call.inputs:
        inputs = _inputs_model(call)
        found.append(("inputs", inputs, inputs()))
    if call.stage.takes_seed:
        found.append(("seed", Annotated[int, Field(ge=0)], 0))
    found.append(("profile", str, load_machine().form_profile))
    found.append(("force", bool, False))
    return [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default
        )
        for name, kind, default in found
    ]


def _inputs_model(call: Call) -> type[BaseModel]:
    """One text field per input; the box says once what may stand in them."""
    fields: dict[str, Any] = {
        name: (Annotated[str, Field(title=f"Result of {name}", pattern=PATTERN)], LATEST)
        for name in call.inputs
    }
    strict = ConfigDict(extra="forbid", frozen=True)
    return create_model("Inputs", __config__=strict, __doc__=_WHICH, **fields)


def _name(stage: str, call: Call) -> str:
    """`tiny-seed0 · sft`, and what differs from the profile's settings and the latest inputs."""
    asked = flow_run.parameters
    settings = type(call.settings).model_validate(asked["settings"])
    changed = changed_words(settings, call.settings)
    inputs = asked.get("inputs") or {}
    which = inputs if isinstance(inputs, dict) else inputs.model_dump()
    changed += [f"{n}={w[:8]}" for n, w in which.items() if w != LATEST]
    seed = f"-seed{asked['seed']}" if "seed" in asked else ""
    words = [f"{Path(asked['profile']).stem}{seed}", stage, ", ".join(changed)]
    return " · ".join(filter(None, words))
