"""Registers what the Prefect UI offers: forms, the GPU limit, automations.

    python deployments/deploy.py [--wait SECONDS]

`klear up` runs it; running it again updates all of it. One form per profile, prefilled with the
whole profile, because a form submits every field, defaults included: one that offered the profile
as a choice would send the numbers of the one it was prefilled with. One form per stage, which runs
that stage alone, prefilled from the profile that `KLEAR_FORM_PROFILE` names.
"""

import argparse
import inspect
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from configs.load import FOLDER, ConfigError, load_profile, profiles
from configs.machine import Machine, load_machine
from flows.prefect_api import POOL, answers
from flows.registration import ROOT, fingerprint, mark_registered
from flows.servers import health_urls

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.deployments.runner import RunnerDeployment


def description(profile: str, machine: Machine) -> str:
    """The comment at the top of the profile, and where to look while it runs."""
    lines = (FOLDER / f"{profile}.yaml").read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    return "\n".join([*comment, "", _links(machine)])


def _links(machine: Machine) -> str:
    return f"[MLflow]({machine.mlflow_uri}) · [reports and plots]({machine.prefect_url}/artifacts)"


def register(machine: Machine) -> list[str]:
    """Create or update the deployments; returns their names. The environment must be set."""
    from prefect import deploy

    forms = [*profile_forms(machine), *stage_forms(machine), ablation_form(machine)]
    quiet = {"print_next_steps_message": False, "ignore_warnings": True}
    deploy(*forms, work_pool_name=POOL, build=False, push=False, **quiet)  # type: ignore[arg-type]
    remove_others(machine.prefect_home / "forms.json", [f"{f.flow_name}/{f.name}" for f in forms])
    return [form.name for form in forms]


def remove_others(record: Path, made: Sequence[str]) -> None:
    """Delete the forms that this home registered before and no longer makes.

    `record` is the list of the last time: what somebody else registered is not in it.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    before = json.loads(record.read_text()) if record.exists() else []
    with get_client(sync_client=True) as client:
        for name in set(before) - set(made):
            with suppress(ObjectNotFound):  # by hand, in the UI
                client.delete_deployment(client.read_deployment_by_name(name).id)
    record.write_text(json.dumps(made))


def profile_forms(machine: Machine) -> list["RunnerDeployment"]:
    """One form per profile: the whole pipeline."""
    from flows.pipeline import pipeline

    return [
        _form(
            pipeline,
            name=profile,
            description=description(profile, machine),
            tags=["klear", "profile", profile],
            parameters={"settings": load_profile(profile).model_dump(mode="json")},
        )
        for profile in profiles()
    ]


def stage_forms(machine: Machine) -> list["RunnerDeployment"]:
    """One form per stage of the form profile."""
    from flows.stage_forms import form, form_calls, values

    return [
        _form(
            form(stage),
            name=f"{Path(machine.form_profile).stem}-{stage}",
            description=f"{inspect.getdoc(call.stage.body)}\n\n{_links(machine)}",
            tags=["klear", "stage", stage],
            parameters=values(stage),
            # The worker must make the very form that was registered.
            environment={"KLEAR_FORM_PROFILE": machine.form_profile},
        )
        for stage, call in form_calls().items()
    ]


def ablation_form(machine: Machine) -> "RunnerDeployment":
    """One form for the paper's tables and figures."""
    from configs.ablation import ablations, load_ablation
    from flows.ablation import ablation

    lines = [f"- `{n}`: {load_ablation(n).shows}, {load_ablation(n).title}" for n in ablations()]
    return _form(
        ablation,
        name="ablation",
        description="\n".join(["Arms × seeds with intervals:", "", *lines, "", _links(machine)]),
        tags=["klear", "ablation"],
        parameters={"name": ablations()[0], "profile": "tiny", "seeds": 5},
    )


def _form(
    flow: "Flow[..., str]", environment: Mapping[str, str] = MappingProxyType({}), **about: Any
) -> "RunnerDeployment":
    """A flow as a deployment: each form one run at a time, others wait."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    enqueue = ConcurrencyLimitStrategy.ENQUEUE
    made = RunnerDeployment.from_flow(
        flow,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=enqueue),
        work_pool_name=POOL,
        job_variables={"working_dir": str(ROOT), "env": dict(environment)},
        entrypoint_type=EntrypointType.MODULE_PATH,
        **about,
    )
    # Prefect calls a field after its parameter, whatever title it has.
    for field in made._parameter_openapi_schema.properties.values():  # pyright: ignore[reportPrivateUsage]
        field["title"] = field["title"].capitalize()
    return made


def limit_gpu(machine: Machine) -> None:
    """The limit that stages take before they use the GPU (see tasks.gpu_slot)."""
    from prefect.client.orchestration import get_client

    from tasks.gpu_lease import GPU_LIMIT

    if machine.gpu_slots:
        with get_client(sync_client=True) as client:
            client.upsert_global_concurrency_limit_by_name(GPU_LIMIT, machine.gpu_slots)


def main() -> int:
    parser = argparse.ArgumentParser(description="Register what the Prefect UI offers.")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for the server")
    arguments = parser.parse_args()
    try:
        machine = load_machine()
        os.environ.update(machine.environment())
        seen = fingerprint(machine)
        import flows.stage_forms  # noqa: F401  takes seconds, while the server starts
        from flows.automations import register_automations

        url = health_urls(machine)["prefect"]
        deadline = time.monotonic() + arguments.wait
        while not answers(url):
            if time.monotonic() > deadline:
                print(f"Prefect does not answer at {url}: run `klear up` first", file=sys.stderr)
                return 1
            time.sleep(0.2)
        names = register(machine)
        limit_gpu(machine)
        names += register_automations(machine)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    mark_registered(machine, seen)
    print(f"registered: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
