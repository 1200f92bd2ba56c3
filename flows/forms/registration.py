"""Registers what the Prefect UI offers, forms, and what Prefect does by itself, automations.

`klear up` runs `python -m klear.flows.forms.registration`; running it again updates all of it.

Two forms per profile, prefilled with its values, because a form submits every field, defaults
included: a short one, and one of the whole tree (`tiny-advanced`). One form that runs any stage
alone, one for the ablations. An automation marks silent runs as crashed; another one, where
`KLEAR_WEBHOOK` names an address, notifies it about failures.
"""

import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import yaml
from prefect import Flow, deploy
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.types.entrypoint import EntrypointType

from klear.configs.files import PACKAGE
from klear.configs.loading import FOLDER, load_profile, profiles
from klear.configs.machine import Machine, load_machine
from klear.configs.settings.ablation import ablations, load_ablation
from klear.flows.ablation import ablation
from klear.flows.forms.forms import form, offered, stage, whole_form
from klear.flows.servers.servers import POOL, TAG

CRASH_SILENT, NOTIFY = "klear: mark dead runs as crashed", "klear: notify about failures"


def register_forms(machine: Machine) -> None:
    """Create or update the deployments; delete those of klear that are no longer made."""
    quiet = {"print_next_steps_message": False, "ignore_warnings": True}
    links = f"[MLflow]({machine.mlflow_url}) · [reports and plots]({machine.prefect_url}/artifacts)"
    # One run of each at a time; the worker must make the very form that was registered.
    one = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    environment = {"KLEAR_FORM_PROFILE": machine.form_profile}
    made = [
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
    begins = {"name": ablations()[0], "profile": "tiny", "seeds": 5}
    yield ablation, "ablation", "ablation", about, begins


def register_automations(machine: Machine) -> None:
    """Create or update them. One that is switched off in the UI stays off."""
    wanted = [automation(CRASH_SILENT, machine.zombie_minutes)]
    if machine.webhook.get_secret_value():
        block = Webhook(method="POST", url=machine.webhook, allow_private_urls=True)
        # The block encrypts the address.
        wanted.append(automation(NOTIFY, block=block.save("klear-webhook", overwrite=True)))
    with get_client(sync_client=True) as client:
        for found in client.read_automations_by_name(NOTIFY) if len(wanted) == 1 else ():
            client.delete_automation(found.id)
        for each in wanted:
            if there := client.read_automations_by_name(each.name):
                enabled = {"enabled": there[0].enabled}
                client.update_automation(there[0].id, each.model_copy(update=enabled))
            else:
                client.create_automation(each)


def automation(name: str, minutes: float = 0.0, block: object = "") -> AutomationCore:
    """One of automations.yaml."""
    facts = {"minutes": f"{minutes:g}", "seconds": 60 * minutes, "block": block}
    text = Template(Path(__file__).with_name("automations.yaml").read_text()).safe_substitute(facts)
    return AutomationCore.model_validate({"name": name, **yaml.safe_load(text)[name]})


if __name__ == "__main__":
    this_machine = load_machine()
    register_automations(this_machine)
    register_forms(this_machine)  # last: they say by their version that all is registered
