"""One Prefect flow a stage, for the form that runs this stage alone.

`flows.forms.stage_forms.stage_sft` is made when it is asked for: a worker that runs one stage does
not wait for the forms of all. The form has the stage's settings, one field per input, and the seed
where the stage takes one; the server refuses what does not fit before anything starts.
"""

import inspect
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from prefect import Flow
from prefect.runtime import flow_run
from pydantic import ConfigDict, Field, create_model

from configs.loading import changed_words, load_profile
from configs.machine import load_machine
from configs.stage_names import STAGES
from flows.forms.inputs import LATEST, PATTERN, PROFILE
from flows.forms.refused import rename_invalid_run
from flows.one_stage import run_stage
from flows.stages import Call, calls

PREFIX = "stage_"
_WHICH = (
    f"`{LATEST}`: the newest result in the store; `{PROFILE}`: the one that a whole run of the "
    "profile would use; or the first digits of a key or digest (`klear store ls`)"
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
    return Flow(
        run,
        name="klear-stage",
        flow_run_name=lambda: _name(call),
        on_failure=[rename_invalid_run],
    )


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


def _name(call: Call) -> str:
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
