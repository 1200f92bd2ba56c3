"""Registers what the Prefect UI offers, forms, and an automation that marks silent runs as crashed.

`klear up` runs `python -m klear.flows.forms.registration`, which begins when its standard input
ends; running it again updates all of it.

Two forms per profile, prefilled with its values, because a form submits every field, defaults
included: a short one, and one of the whole tree (`tiny-advanced`). One form that runs any stage
alone, one for the ablations.
"""

import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect import Flow, deploy
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.types.entrypoint import EntrypointType

from ...configs.ablation import ablations, load_ablation
from ...configs.files import PACKAGE
from ...configs.loading import FOLDER, load_profile, profiles
from ...configs.machine import Machine, load_machine
from ..ablation import ablation
from ..servers.servers import POOL, TAG
from .forms import form, offered, stage, whole_form


def forms(machine: Machine) -> list[RunnerDeployment]:
    """What is to be registered; needs no server."""
    links = f"[MLflow]({machine.mlflow_url}) · [reports and plots]({machine.prefect_url}/artifacts)"
    # One run of each at a time; the worker must make the very form that was registered.
    one = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    environment = {"KLEAR_FORM_PROFILE": machine.form_profile}
    return [
        RunnerDeployment.from_flow(
            flow,
            name=name,
            description=f"{about}\n\n{links}",
            tags=[TAG, kind],
            parameters=begins,
            concurrency_limit=one,
            work_pool_name=POOL,
            job_variables={"working_dir": str(PACKAGE), "env": environment},
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for flow, name, kind, about, begins in _offered()
    ]


def register_forms(made: list[RunnerDeployment]) -> None:
    """Create or update the deployments; delete those of klear that are no longer made."""
    quiet = {"print_next_steps_message": False, "ignore_warnings": True}
    ids: Any = deploy(*made, work_pool_name=POOL, build=False, push=False, **quiet)  # type: ignore[arg-type]
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    with get_client(sync_client=True) as client:
        for there in client.read_deployments(deployment_filter=ours):
            if there.id not in ids:
                client.delete_deployment(there.id)


def _offered() -> Iterator[tuple[Flow[..., str], str, str, str, dict[str, Any]]]:
    """Flow, name, kind, what it says of itself, and what it begins with."""
    for profile, path in offered().items():
        file = FOLDER / f"{profile}.yaml" if path in profiles() else Path(path)
        comment = itertools.takewhile(lambda line: line.startswith("#"), file.open())
        about = "\n".join(line.strip("# \n") for line in comment)
        settings = load_profile(path).model_dump(mode="json")
        begins = {n: p.default for n, p in inspect.signature(form(profile).fn).parameters.items()}
        yield form(profile), profile, "profile", about, begins
        whole = f"Every setting of `{profile}`.\n\n{about}"
        yield whole_form(), f"{profile}-advanced", "advanced", whole, {"settings": settings}
    yield stage, "stage", "stage", inspect.getdoc(stage.fn) or "", {}
    lines = [f"- `{n}`: {load_ablation(n).shows}, {load_ablation(n).title}" for n in ablations()]
    about = "\n".join(["Arms × seeds with intervals:", "", *lines])
    begins = {"name": ablations()[0], "profile": "tiny"}
    yield ablation, "ablation", "ablation", about, begins


def crash_silent(minutes: float) -> AutomationCore:
    """Marks a run as crashed that has not been heard of for so many minutes."""
    text = Template(Path(__file__).with_name("crash_silent.yaml").read_text())
    said = text.substitute(minutes=f"{minutes:g}", seconds=60 * minutes)
    return AutomationCore.model_validate(yaml.safe_load(said))


def register_automation(rule: AutomationCore) -> None:
    """Create or update it. Where it is switched off in the UI it stays off."""
    with get_client(sync_client=True) as client:
        if there := client.read_automations_by_name(rule.name):
            enabled = {"enabled": there[0].enabled}
            client.update_automation(there[0].id, rule.model_copy(update=enabled))
        else:
            client.create_automation(rule)


if __name__ == "__main__":
    this_machine = load_machine()
    deployments = forms(this_machine)
    sys.stdin.read()  # the server may be starting meanwhile
    register_automation(crash_silent(this_machine.zombie_minutes))
    register_forms(deployments)  # last: they say by their version that all is registered
