"""The flows that Prefect shows: a pipeline of any profile, one stage alone, an ablation.

A worker and the command start the same functions with the same parameters, so that Retry and "Copy
to new run" work on the page of either.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import httpx
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.context import FlowRunContext, SyncClientContext
from prefect.exceptions import CancelledRun, ObjectNotFound, Pause
from prefect.flow_engine import run_flow
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Pending
from pydantic import Field, WithJsonSchema

from ...configs.loading import PROFILES, Request, names_in
from ...configs.machine import load_machine
from ...configs.settings.base import first_few, short
from ...configs.settings.explain import ConfigError
from ...configs.settings.loss import LOSSES
from ...configs.settings.pipeline import StageName
from ...tasks.observe.prefect import CTRL_C, ends_in_a_sentence, is_worker_run
from ...tasks.store.lineage import LATEST
from ..one_stage import choose_inputs, run_stage
from ..run import run_pipeline
from .descriptions import of_ablations, of_profile, with_links
from .forms import SETS, lines_of, read_request
from .names import NAMED, is_made_up, names_what_waits

# Fields that may be empty: Prefect would show a type beside None as two tabs.
Positive = Annotated[
    float | None, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
# Not `minimum`, from which the updated UI counts in whole steps: 0.1 could not be submitted.
JUST_BELOW_0 = -1e-300
Weight = Annotated[
    float | None, Field(ge=0), WithJsonSchema({"type": "number", "exclusiveMinimum": JUST_BELOW_0})
]
Count = Annotated[int | None, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1})]
Names = Annotated[list[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]
Loss = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [*LOSSES]})]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
OwnSeed = Annotated[
    int | None,
    Field(ge=0, lt=2**32),
    WithJsonSchema({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**32}),
]
_NAMES = names_in(PROFILES)
_OWN = filter(None, [load_machine().form_profile])
ProfileName = Annotated[str, WithJsonSchema({"type": "string", "enum": [*_NAMES, *_OWN]})]
ScaleName = Annotated[str, WithJsonSchema({"type": "string", "enum": _NAMES})]
AblationName = Annotated[
    str, WithJsonSchema({"type": "string", "enum": names_in(PROFILES.with_name("ablations"))})
]
_LINE = r"[ \t]*(#.*|[^=\s#][^=\n]*=.*)?\r?"
Changes = Annotated[str, Field(pattern=rf"^{_LINE}(\n{_LINE})*$")]
LAST_STAGE = "report"
SUSPENDED = "suspended in the Prefect UI; after Resume a worker goes on"


def name_of(form: str, parameters: Mapping[str, Any]) -> str:
    """What a run of these parameters is called: profile, seed and what differs; `form` is the name
    of its function."""
    names = {"stage": stage_name, "ablation": ablation_name}
    values = {"profile": "tiny", "stage": "report", **parameters}
    try:
        name = names.get(form, pipeline_name)(values)
    except ConfigError:  # the run says what is wrong
        parts = [Path(values["profile"]).stem, *([values["stage"]] if form == "stage" else [])]
        name = " · ".join(parts)
    return f"plan of {name}" if values.get("plan_only") else name


def pipeline_name(parameters: Mapping[str, Any], name: str = "") -> str:
    """`until collect · sft.epochs=2 · tiny-seed0`; `name` is that of a whole run, where it is read
    already."""
    until = parameters.get("until", LAST_STAGE)
    part = "" if until == LAST_STAGE else f"until {until}"
    return " · ".join(filter(None, [part, name or _request_of(parameters).name]))


def _name_of_this_run() -> str:
    """The name that was typed in the form, if one was."""
    name, context = str(flow_run.name or ""), FlowRunContext.get()
    form = context.flow.fn.__name__ if context and context.flow else ""
    again = is_made_up(name) or NAMED in flow_run.tags
    return name_of(form, flow_run.parameters) if again else name


def _request_of(parameters: Mapping[str, Any]) -> Request:
    fields = json.dumps({name: parameters.get(name) for name in SETS})
    profile, changes = parameters["profile"], parameters.get("changes", "")
    return _read(profile, fields, changes, parameters.get("seed"))


@lru_cache(maxsize=1)
def _read(profile: str, fields: str, changes: str, seed: int | None) -> Request:
    """Kept, for Prefect asks for the name of a run and then runs it."""
    return read_request(profile, json.loads(fields), changes, seed)


@flow(name="klear", flow_run_name=_name_of_this_run)
@ends_in_a_sentence
@names_what_waits(name_of)
def pipeline(
    profile: str,
    changes: Changes = "",
    sft_epochs: Positive = None,
    sft_learning_rate: Positive = None,
    loss: Loss = None,
    eps_low: Positive = None,
    eps_high: Positive = None,
    beta1: Weight = None,
    beta2: Weight = None,
    lm_weight: Weight = None,
    rl_math_learning_rate: Positive = None,
    rl_math_steps: Count = None,
    rl_code_learning_rate: Positive = None,
    rl_code_steps: Count = None,
    k: Count = None,
    sources: Names = None,
    until: StageName = LAST_STAGE,
    force: list[StageName] = [],  # noqa: B006
    seed: OwnSeed = None,
    verify: bool = False,
    plan_only: bool = False,
) -> str:
    """Data, SFT, math RL, code RL, evaluation, report. A field that is empty, or as the profile
    has it, changes nothing.

    Args:
        profile: The profile whose values this form begins with; others have forms of their own.
        changes: Any other setting, one a line: sft.batch_tokens=1024. A line wins over a field.
        sft_epochs: How often SFT goes through its data; 4 in the paper.
        sft_learning_rate: The highest learning rate of SFT; 8e-5 in the paper.
        loss: How both RL stages weigh tokens; gppo is the paper's proposal, clip_higher, grpo and
            cispo are what it compares with, the others are from other papers.
        eps_low: Both RL stages clip tokens whose probability falls below 1 - this times what it was
            in the rollout; 0.2 in the paper.
        eps_high: Both RL stages clip tokens whose probability rises above 1 + this times what it
            was in the rollout; 0.28 in the paper.
        beta1: How much gradient both RL stages keep of tokens clipped below; 1 in the paper.
        beta2: How much gradient both RL stages keep of tokens clipped above; 1 in the paper.
        lm_weight: How much both RL stages also imitate right answers; 0.1 in the paper.
        rl_math_learning_rate: The learning rate of math RL; 1e-6 in the paper.
        rl_math_steps: Rollout steps of math RL.
        rl_code_learning_rate: The learning rate of code RL; 5e-7 in the paper.
        rl_code_steps: Rollout steps of code RL.
        k: Answers to each problem of a benchmark; one that you change holds for all benchmarks.
        sources: The datasets that training problems come from.
        until: The stage to compute, with all that it is made from.
        force: Stages to compute again although the store has their results.
        seed: The seed of every random stage.
        verify: Read every byte of a result before it is reused.
        plan_only: Stop after the plan: what would be computed, why, and how long it takes.
    """
    parameters = locals()
    form = str(deployment.name or "") if is_worker_run() else ""
    if form not in ("", Path(profile).stem):
        wrong = f"profile: this form begins with the values of {form}; {profile} has its own form"
        raise ConfigError([wrong])
    request = _request_of(parameters)
    _read.cache_clear()
    request.refuse_left_out(until, *force)
    result = run_pipeline(request, until, frozenset(force), verify, plan_only)
    return describe_again(result, of_profile(profile)) if plan_only else result


def stage_name(parameters: Mapping[str, Any]) -> str:
    """`sft · sft.epochs=2 · as of … · tiny-seed0`; of `latest` where its run is not the profile."""
    values = {"changes": "", "other_inputs": "", "inputs_as_of": LATEST, "seed": 0, **parameters}
    lines = lines_of(values["changes"])
    changed = ", ".join(first_few([short(line) for line in lines + values["other_inputs"].split()]))
    inputs = choose_inputs(
        values["profile"], values["stage"], lines, values["inputs_as_of"],
        values["other_inputs"], values["seed"],
    )  # fmt: skip
    name = f"as of {inputs.name}" if inputs.is_named else ""
    profile = f"{Path(values['profile']).stem}-seed{values['seed']}"
    return " · ".join(filter(None, (values["stage"], changed, name, profile)))


@flow(name="klear", flow_run_name=_name_of_this_run)
@ends_in_a_sentence
@names_what_waits(name_of)
def stage(
    profile: ProfileName = "tiny",
    stage: StageName = "report",
    changes: Changes = "",
    inputs_as_of: str = LATEST,
    other_inputs: str = "",
    mixed: bool = False,
    seed: Seed = 0,
    force: bool = False,
    plan_only: bool = False,
) -> str:
    """One stage of a profile on results of another run, by default of the last complete one.

    Args:
        profile: The profile that settings are of, unless you change them.
        stage: The stage to run.
        changes: Settings of this stage to change, one a line: sft.epochs=2.
        inputs_as_of: The run whose results the stage takes: latest (the last complete one of this
            profile and seed), the name or id of another, or one result (report/0a1b2c) with all
            that it was made from.
        other_inputs: Single results to take instead, one a line: evaluate_sft=0a1b2c.
        mixed: Allow inputs and settings of different runs; the page of the run lists them.
        seed: The seed of every random stage.
        force: Compute the stage again although the store has its result.
        plan_only: Stop after the plan: what would be computed, why, and how long it takes.
    """
    lines, flags = lines_of(changes), {"mixed": mixed, "seed": seed, "force": force}
    return run_stage(profile, stage, lines, inputs_as_of, other_inputs, plan_only, **flags)


def ablation_name(parameters: Mapping[str, Any]) -> str:
    """`table6_lm_weight · tiny · 5 seeds`."""
    from ...configs.ablation import load_ablation

    seeds = parameters.get("seeds") or load_ablation(parameters["name"]).seeds
    return f"{parameters['name']} · {parameters['profile']} · {seeds} seed{'s' * (seeds > 1)}"


@flow(name="klear-ablation", flow_run_name=_name_of_this_run)
@ends_in_a_sentence
@names_what_waits(name_of)
def ablation(
    name: AblationName,
    profile: ScaleName = "tiny",
    seeds: Annotated[int, Field(ge=0, le=100)] = 0,
    concurrent: Annotated[int, Field(ge=1, le=64)] = 1,
    plan_only: bool = False,
) -> str:
    """Repeats one table or figure of the paper: every arm with every seed, then one page of effects
    with intervals. It takes hours: make the plan first (plan_only).

    Args:
        name: The table or figure to repeat.
        profile: The scale to run it at; each experiment says what it shows there.
        seeds: Runs of each arm, compared seed by seed; 0 is as many as the experiment says.
        concurrent: Runs at once on this machine; stages that they share are computed once.
        plan_only: Stop after the plan: what would be computed, why, and how long it takes.
    """
    from ..ablation import run_ablation  # what only experiments need

    result = run_ablation(name, profile, seeds, concurrent, plan_only)
    return describe_again(result, of_ablations(ablation.fn)) if plan_only else result


def describe_again(result: str, text: str) -> str:
    """The form of this run says what the plan that was just made says; returns `result`."""
    if deployment.id:
        new = DeploymentUpdate(description=with_links(text, load_machine()))
        with get_client(sync_client=True) as client:
            client.update_deployment(UUID(str(deployment.id)), new)
    return result


def start(flow: Any, parameters: Mapping[str, Any], form: str = "", name: str = "") -> str:
    """A flow in this process, as a run of its form where `klear up` registered one that takes the
    profile: then its page has Retry and "Copy to new run" as any other.

    One client, and one reading of certificates, for all of it; without Prefect's own heartbeat,
    which has a run wait for a second at its end: `watch_cancel_requests` sends them.
    """
    run: Any = run_flow  # its types know of no flow that is no coroutine
    with SyncClientContext(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        by_form = _run_of_form(form, parameters, name) if form else None
        return str(run(flow, flow_run=by_form) if by_form else flow(**parameters))


def _run_of_form(name_of_form: str, parameters: Mapping[str, Any], name: str) -> Any:
    """A run that a form would start; None where this Prefect has no such form, or it is the form of
    other profiles."""
    # In a queue of its own: those of forms do not wait for it.
    fields: Any = {"parameters": dict(parameters), "name": name, "work_queue_name": "terminal"}
    refused = (ObjectNotFound, httpx.HTTPStatusError)
    with get_client(sync_client=True) as client, suppress(*refused):
        form = client.read_deployment_by_name(f"klear/{name_of_form}")
        if form.parameters.get("profile", parameters["profile"]) == parameters["profile"]:
            # Pending: a worker takes those that are scheduled
            return client.create_flow_run_from_deployment(form.id, **fields, state=Pending())
    return None


def ending(error: BaseException) -> str:
    """What to print of a run that somebody ended; '' where it failed."""
    if isinstance(error, Pause):
        return SUSPENDED
    if type(error) is KeyboardInterrupt:  # before or after the flow, which ends as Cancelled
        return CTRL_C
    return str(error) if isinstance(error, (CancelledRun, KeyboardInterrupt)) else ""
