"""Registers what the Prefect UI offers, forms, and an automation that marks silent runs as crashed.

`klear up` runs `python -m klear.flows.cockpit.registration`, which begins when its standard input
ends; running it again updates all of it.
"""

import sys
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect import deploy
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.types.entrypoint import EntrypointType

from ...configs.files import PACKAGE
from ...configs.loading import load_profile, profiles
from ...configs.machine import Machine, load_machine
from .descriptions import first_paragraph, of_ablations, of_profile, with_links
from .flows import ablation, pipeline, stage
from .forms import values_of
from .servers import POOL, TAG


def forms(machine: Machine) -> list[RunnerDeployment]:
    """What is to be registered; needs no server."""
    # One run of each at a time.
    one = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)

    def form(flow: Any, name: str, kind: str, text: str, values: dict[str, Any]) -> Any:
        return RunnerDeployment.from_flow(
            flow,
            name=name,
            description=with_links(text, machine),
            tags=[TAG, kind],
            parameters=values,
            concurrency_limit=one,
            work_pool_name=POOL,
            job_variables={"working_dir": str(PACKAGE)},
            entrypoint_type=EntrypointType.MODULE_PATH,
        )

    offered = list[RunnerDeployment]()
    for profile in filter(None, (*profiles(), machine.form_profile)):
        settings = load_profile(profile)
        values = {"profile": profile, **values_of(settings), "seed": settings.seed}
        name, text = Path(profile).stem, of_profile(profile)
        offered.append(form(pipeline, name, "profile", text, values))
    offered.append(form(stage, "stage", "stage", first_paragraph(stage.fn), {}))
    # Without a name, Quick run starts nothing.
    return [*offered, form(ablation, "ablation", "ablation", of_ablations(ablation.fn), {})]


def register_forms(deployments: list[RunnerDeployment]) -> None:
    """Create or update them; delete those of klear that are no longer made."""
    quiet = {"print_next_steps_message": False, "ignore_warnings": True}
    ids: Any = deploy(*deployments, work_pool_name=POOL, build=False, push=False, **quiet)  # type: ignore[arg-type]
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    with get_client(sync_client=True) as client:
        for registered in client.read_deployments(deployment_filter=ours):
            if registered.id not in ids:
                client.delete_deployment(registered.id)


def crash_silent(minutes: float) -> AutomationCore:
    """Marks a run as crashed that has not been heard of for so many minutes."""
    text = Template(Path(__file__).with_name("crash_silent.yaml").read_text())
    rule = yaml.safe_load(text.substitute(minutes=f"{minutes:g}", seconds=60 * minutes))
    return AutomationCore.model_validate(rule)


def register_automation(rule: AutomationCore) -> None:
    """Create or update it. Where it is switched off in the UI it stays off."""
    with get_client(sync_client=True) as client:
        if registered := client.read_automations_by_name(rule.name):
            enabled = {"enabled": registered[0].enabled}
            client.update_automation(registered[0].id, rule.model_copy(update=enabled))
        else:
            client.create_automation(rule)


if __name__ == "__main__":
    this_machine = load_machine()
    deployments = forms(this_machine)
    sys.stdin.read()  # the server may be starting meanwhile
    register_automation(crash_silent(this_machine.zombie_minutes))
    register_forms(deployments)  # last: they say by their version that all is registered
