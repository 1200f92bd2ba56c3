"""Registers what the Prefect UI offers: forms and automations.

    python deployments/deploy.py [--wait SECONDS]

`klear up` runs it; running it again updates all of it. One form per profile, prefilled with the
whole profile, because a form submits every field, defaults included: one that offered the profile
as a choice would send the numbers of the one it was prefilled with. One form per stage, which runs
that stage alone, prefilled from the profile that `KLEAR_FORM_PROFILE` names.
"""

import argparse
import inspect
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.loading import FOLDER, ConfigError, load_profile, profiles
from configs.machine import Machine, load_machine
from flows.servers.commands import ROOT, fingerprint, mark_registered
from flows.servers.prefect_api import POOL, answers
from flows.servers.servers import health_urls

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.deployments.runner import RunnerDeployment


def register(machine: Machine) -> list[str]:
    """Create or update the deployments; returns their names. The environment must be set."""
    from prefect import deploy

    made = list(forms(machine))
    quiet = {"print_next_steps_message": False, "ignore_warnings": True}
    deploy(*made, work_pool_name=POOL, build=False, push=False, **quiet)  # type: ignore[arg-type]
    remove_others(machine.prefect_home / "forms.json", [f"{f.flow_name}/{f.name}" for f in made])
    return [form.name for form in made]


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


def forms(machine: Machine) -> Iterator["RunnerDeployment"]:
    """One form per profile, one per stage of the form profile, one for the ablations."""
    from configs.settings.ablation import ablations, load_ablation
    from flows.ablations.ablation import ablation
    from flows.forms.stage_forms import form, form_calls, values
    from flows.pipeline import pipeline

    links = f"[MLflow]({machine.mlflow_uri}) · [reports and plots]({machine.prefect_url}/artifacts)"
    for profile in profiles():
        lines = (FOLDER / f"{profile}.yaml").read_text(encoding="utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        yield _form(
            pipeline,
            name=profile,
            description="\n".join([*(line.strip("# ") for line in comment), "", links]),
            tags=["klear", "profile", profile],
            parameters={"settings": load_profile(profile).model_dump(mode="json")},
        )
    for stage, call in form_calls().items():
        yield _form(
            form(stage),
            name=f"{Path(machine.form_profile).stem}-{stage}",
            description=f"{inspect.getdoc(call.stage.body)}\n\n{links}",
            tags=["klear", "stage", stage],
            parameters=values(stage),
            # The worker must make the very form that was registered.
            environment={"KLEAR_FORM_PROFILE": machine.form_profile},
        )
    lines = [f"- `{n}`: {load_ablation(n).shows}, {load_ablation(n).title}" for n in ablations()]
    yield _form(
        ablation,
        name="ablation",
        description="\n".join(["Arms × seeds with intervals:", "", *lines, "", links]),
        tags=["klear", "ablation"],
        parameters={"name": ablations()[0], "profile": "tiny", "seeds": 5},
    )


def _form(
    flow: "Flow[..., str]", environment: dict[str, str] | None = None, **about: Any
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
        job_variables={"working_dir": str(ROOT), "env": environment or {}},
        entrypoint_type=EntrypointType.MODULE_PATH,
        **about,
    )
    # Prefect calls a field after its parameter, whatever title it has.
    for field in made._parameter_openapi_schema.properties.values():  # pyright: ignore[reportPrivateUsage]
        field["title"] = field["title"].capitalize()
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description="Register what the Prefect UI offers.")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for the server")
    deadline = time.monotonic() + parser.parse_args().wait
    try:
        machine = load_machine()
        os.environ.update(machine.environment())
        seen = fingerprint(machine)
        import flows.forms.stage_forms  # noqa: F401  takes seconds, while the server starts
        from flows.servers.automations import register_automations

        url = health_urls(machine)["prefect"]
        while not answers(url):
            if time.monotonic() > deadline:
                print(f"Prefect does not answer at {url}: run `klear up` first", file=sys.stderr)
                return 1
            time.sleep(0.2)
        names = [*register(machine), *register_automations(machine)]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    mark_registered(machine, seen)
    print(f"registered: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
