"""The flows that Prefect shows: a pipeline of any profile, one stage alone, an ablation.

A worker and the command start the same functions with the same parameters, so that Retry and "Copy
to new run" work on the page of either.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from coolname.data import config as words  # which Prefect has its names from
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import SyncClientContext
from prefect.exceptions import CancelledRun, ObjectNotFound, Pause
from prefect.flow_engine import run_flow
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Pending
from pydantic import Field, WithJsonSchema

from ...configs.loading import PROFILES, names_in
from ...configs.machine import load_machine
from ...configs.settings.base import first_few, short
from ...configs.settings.explain import ConfigError
from ...configs.settings.loss import LOSSES
from ...configs.settings.pipeline import StageName
from ...tasks.observe.prefect import CTRL_C, interrupts_as_cancelled, is_worker_run
from ...tasks.store.lineage import LATEST
from ..one_stage import run_stage
from ..request import Request
from ..run import run_pipeline
from .forms import SETS, lines_of, read_request

# Fields that may be empty: Prefect would show a type beside None as two tabs.
Positive = Annotated[
    float | None, Field(gt=0), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Weight = Annotated[float | None, Field(ge=0), WithJsonSchema({"type": "number", "minimum": 0})]
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
SUSPENDED = "suspended in the Prefect UI; after Resume a worker goes on"
_GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho"
_GREEK += "|sigma|tau|upsilon|phi|chi|psi|omega"
# By Prefect: puzzling-orca; in a form iota71-mariah, beta3-canis-majoris-a.
_BY_SERVER = {word for part in words.values() for word in part.get("words", ())}


def typed_name() -> str:
    """What somebody called this run in its form; '' where Prefect made up a name."""
    name = str(flow_run.name or "")
    by_server = "-" in name and _BY_SERVER.issuperset(name.split("-"))
    return "" if by_server or re.fullmatch(rf"({_GREEK})\d*(-[a-z]+)+", name) else name


def _pipeline_name() -> str:
    """The name that was typed in the form, else profile, seed and what differs."""
    with suppress(ConfigError):  # the run says what is wrong
        return typed_name() or _request_of(flow_run.parameters).name
    return Path(flow_run.parameters["profile"]).stem


def _request_of(parameters: Mapping[str, Any]) -> Request:
    fields = json.dumps({name: parameters.get(name) for name in SETS})
    return _read(parameters["profile"], fields, parameters["changes"], parameters["seed"])


@lru_cache(maxsize=1)
def _read(profile: str, fields: str, changes: str, seed: int | None) -> Request:
    """Kept, for Prefect asks for the name of a run and then runs it."""
    return read_request(profile, json.loads(fields), changes, seed)


@flow(name="klear", flow_run_name=_pipeline_name)
@interrupts_as_cancelled
def pipeline(
    profile: str,
    changes: str = "",
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
    until: StageName = "report",
    force: list[StageName] = [],  # noqa: B006
    seed: OwnSeed = None,
    verify: bool = False,
) -> str:
    """Data, SFT, math RL, code RL, evaluation, report. A field that is empty, or as the profile
    has it, changes nothing.

    Args:
        profile: Whose form this is, or the path of a YAML file.
        changes: Any other setting, one a line as `sft.batch_tokens=1024`.
        sft_epochs: §4.1: 4.
        sft_learning_rate: Peak; §4.1: 8e-5.
        loss: Of both RL stages; gppo: Eq. 11; clip_higher: Eq. 7; grpo: Eq. 3; cispo: Eq. 15; or of
            others.
        eps_low: Of both RL stages; tokens with δ below 1 - ε are clipped; §2.3: 0.2.
        eps_high: Of both RL stages; tokens with δ above 1 + ε are clipped; §4.1: 0.28.
        beta1: Of both RL stages; gradient of tokens clipped below (Eq. 17); §3.2.2: 1.
        beta2: Of both RL stages; gradient of tokens clipped above (Eq. 17); §3.2.2: 1.
        lm_weight: Of both RL stages; weight of the LM loss on right answers (Eq. 14); §4.1: 0.1.
        rl_math_learning_rate: §4.1: 1e-6.
        rl_math_steps: Rollout steps.
        rl_code_learning_rate: §4.1: 5e-7.
        rl_code_steps: Rollout steps.
        k: Answers to every problem of every benchmark; changed, it is the same for all.
        sources: Of the training problems.
        until: Stop after this stage.
        force: Compute these stages even if the store has their results.
        seed: Of every random stage.
        verify: Reuse a result only if every byte is what was published.
    """
    parameters = locals()
    form = str(deployment.name or "") if is_worker_run() else ""
    if form not in ("", Path(profile).stem):
        wrong = f"profile: this form begins with the values of {form}; {profile} has its own form"
        raise ConfigError([wrong])
    request = _request_of(parameters)
    _read.cache_clear()
    request.refuse_left_out(until, *force)
    return run_pipeline(request, until, frozenset(force), verify)


def _stage_name() -> str:
    """The name that was typed in the form, else `tiny-seed0 · sft · sft.epochs=2, as of …`."""
    parameters = flow_run.parameters
    lines = lines_of(parameters["changes"]) + parameters["other_inputs"].split()
    changed = ", ".join(first_few([short(line) for line in lines]))
    which = parameters["inputs_as_of"]
    inputs = "" if which == LATEST else f"as of {which}"
    profile = f"{Path(parameters['profile']).stem}-seed{parameters['seed']}"
    return typed_name() or " · ".join(filter(None, (profile, parameters["stage"], changed, inputs)))


@flow(name="klear", flow_run_name=_stage_name)
@interrupts_as_cancelled
def stage(
    profile: ProfileName = "tiny",
    stage: StageName = "report",
    changes: str = "",
    inputs_as_of: str = LATEST,
    other_inputs: str = "",
    mixed: bool = False,
    seed: Seed = 0,
    force: bool = False,
) -> str:
    """One stage of a profile on the results of a complete run. Returns its result's folder.

    Args:
        profile: Whose settings, unless changed.
        stage: The one to run.
        changes: Settings of this stage that differ from the profile's, a line as `sft.epochs=2`.
        inputs_as_of: Whose results it takes: `latest`, the last complete run of profile and seed;
            the name or id of another; or a result, `report/0a1b2c`, and what it was made from.
        other_inputs: Results that it takes instead, one a line as `evaluate_sft=0a1b2c`.
        mixed: Allow inputs that do not belong together; the page says which.
        seed: Of every random stage.
        force: Compute even if the store has this result.
    """
    lines, flags = lines_of(changes), {"mixed": mixed, "seed": seed, "force": force}
    return run_stage(profile, stage, lines, inputs_as_of, other_inputs, **flags)


@flow(name="klear-ablation", flow_run_name="{name} · {profile}")
@interrupts_as_cancelled
def ablation(
    name: AblationName,
    profile: ScaleName = "tiny",
    seeds: Count = None,
    concurrent: Annotated[int, Field(ge=1, le=64)] = 1,
) -> str:
    """One table or figure of the paper: every arm with every seed, then one page of effects.

    Args:
        name: The experiment, a file of `configs/ablations`.
        profile: The scale to run it at; each experiment says what it shows there.
        seeds: Runs an arm, which are compared seed by seed; default: as the experiment says.
        concurrent: Runs at once on this machine; stages that they share are computed once.
    """
    from ..ablation import run_ablation  # what only experiments need

    return run_ablation(name, profile, seeds, concurrent)


def start_pipeline(parameters: Mapping[str, Any], name: str) -> str:
    """A pipeline in this process, as a run of its profile's form where `klear up` registered one:
    then its page has Retry and "Copy to new run" as any other."""
    with _in_terminal():
        if by_form := _run_of_form(parameters, name):
            start: Any = run_flow  # its types know of no flow that is no coroutine
            return start(pipeline, flow_run=by_form)
        return str(pipeline(**parameters))


def start_ablation(name: str, profile: str, seeds: int | None, concurrent: int) -> str:
    """An ablation in this process."""
    with _in_terminal():
        return ablation(name, profile, seeds, concurrent)


@contextmanager
def _in_terminal() -> Iterator[None]:
    """One client, and one reading of certificates, for all of it; without Prefect's own heartbeat,
    which has a run wait for a second at its end: `watch_cancel_requests` sends them."""
    with SyncClientContext(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _run_of_form(parameters: Mapping[str, Any], name: str) -> Any:
    """A run that the profile's form would start; None where it has none with this Prefect."""
    fields: Any = {"parameters": dict(parameters), "name": name}
    with get_client(sync_client=True) as client, suppress(ObjectNotFound):
        form = client.read_deployment_by_name(f"klear/{Path(parameters['profile']).stem}")
        if form.parameters.get("profile") == parameters["profile"]:
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
