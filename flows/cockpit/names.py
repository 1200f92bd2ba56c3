"""Which runs still have a name that Prefect made up, and better ones for those that wait."""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from coolname.data import config as words  # which Prefect has its names from
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType

from .servers import TAG

SECONDS_BETWEEN_LOOKS = 20.0
NAMED = "named-in-the-queue"
"""Tag of a run that was: at its start `latest` may be another run, and it is named again."""
_GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho"
_GREEK += "|sigma|tau|upsilon|phi|chi|psi|omega"
# By Prefect: puzzling-orca; in a form iota71-mariah, beta3-canis-majoris-a; in a form of its
# updated UI Fantastic-Alabai, Awesome-Vicuña: an adjective, an animal of at most six letters.
_BY_SERVER = {word for part in words.values() for word in part.get("words", ())}
_BY_FORM = re.compile(rf"({_GREEK})\d*(-[a-z]+)+|[A-Z][a-z-]+-[A-Z]\D{{1,5}}")
Name = Callable[[str, Mapping[str, Any]], str]
"""What a run is called, by the function of its form and by its parameters."""


def is_made_up(name: str) -> bool:
    """Whether Prefect gave the run its name, and no person."""
    by_server = "-" in name and _BY_SERVER.issuperset(name.split("-"))
    return not name or by_server or _BY_FORM.fullmatch(name) is not None


@contextmanager
def names_what_waits(name_of: Name) -> Iterator[None]:
    """Below `@flow`: while the run is under way, runs of klear's forms that wait behind it get the
    names that they would give themselves at their start, by their parameters. Best effort."""
    over = threading.Event()
    scheduled = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))

    def name_queued() -> None:
        with get_client(sync_client=True) as client:
            waiting = client.read_flow_runs(
                flow_run_filter=FlowRunFilter(state=scheduled), deployment_filter=ours
            )
            unnamed = [run for run in waiting if is_made_up(run.name)]
            forms = client.read_deployments(deployment_filter=ours) if unnamed else []
            functions = {d.id: (d.entrypoint or "").rpartition(".")[2] for d in forms}
            for run in unnamed:
                form = functions[run.deployment_id] if run.deployment_id else ""
                tags = [*run.tags, NAMED]
                client.update_flow_run(run.id, name=name_of(form, run.parameters), tags=tags)

    def look() -> None:
        while not over.wait(SECONDS_BETWEEN_LOOKS):
            try:
                name_queued()
            except Exception as error:
                logging.getLogger("klear").debug("queued runs keep their names: %s", error)

    threading.Thread(target=look, name="name-queued", daemon=True).start()
    try:
        yield
    finally:
        over.set()
