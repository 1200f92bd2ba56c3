"""Registers one Prefect deployment per profile: a typed form, prefilled with the whole profile.

    python deployments/deploy.py [--wait SECONDS]

`klear up` runs it; running it again updates the forms. One deployment per profile, because a form
submits every field, defaults included: a form that offered the profile as a choice would send the
numbers of the one it was prefilled with.
"""

import argparse
import os
import sys
import time

from configs.load import FOLDER, ConfigError, load_profile, profiles
from configs.machine import Machine, load_machine
from flows.prefect_api import POOL, answers
from flows.registration import ROOT, fingerprint, mark_registered
from flows.servers import health_urls


def description(profile: str, machine: Machine) -> str:
    """The comment at the top of the profile, and where to look while it runs."""
    lines = (FOLDER / f"{profile}.yaml").read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").rstrip())
    links = f"[MLflow]({machine.mlflow_uri}) · [reports and plots]({machine.prefect_url}/artifacts)"
    return "\n".join([*comment, "", links])


def register(machine: Machine) -> list[str]:
    """Create or update the deployments; returns their names. The environment must be set."""
    from prefect import deploy
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.types.entrypoint import EntrypointType

    from flows.pipeline import pipeline

    one_at_a_time = ConcurrencyLimitConfig(
        limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
    )
    deployments = [
        pipeline.to_deployment(
            name=profile,
            description=description(profile, machine),
            tags=["klear", profile],
            parameters={"settings": load_profile(profile).model_dump(mode="json")},
            concurrency_limit=one_at_a_time,
            work_pool_name=POOL,
            job_variables={"working_dir": str(ROOT)},
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for profile in profiles()
    ]
    if deployments:
        deploy(*deployments, work_pool_name=POOL, build=False, push=False)  # type: ignore[arg-type]
    return profiles()


def main() -> int:
    parser = argparse.ArgumentParser(description="Register one Prefect deployment per profile.")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for the server")
    arguments = parser.parse_args()
    try:
        machine = load_machine()
        os.environ.update(machine.environment())
        seen = fingerprint()
        import flows.pipeline  # noqa: F401  takes seconds, while the server starts

        url = health_urls(machine)["prefect"]
        deadline = time.monotonic() + arguments.wait
        while not answers(url):
            if time.monotonic() > deadline:
                print(f"Prefect does not answer at {url}: run `klear up` first", file=sys.stderr)
                return 1
            time.sleep(0.2)
        names = register(machine)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    mark_registered(machine, seen)
    print(f"registered: {', '.join(names) or 'no profile'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
