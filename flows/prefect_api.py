"""The few calls to our servers that must not wait for `import prefect` (seconds)."""

import json
import time
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from configs.machine import Machine

POOL = "klear-local"


class ServerError(RuntimeError):
    """A server could not be reached or refused; the message says which and why."""


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether GET `url` succeeds."""
    try:
        with _open(url, timeout_s) as response:
            return response.status == 200
    except OSError:  # refused, timed out, or an HTTP error: all are OSErrors
        return False


def create_pool(machine: Machine) -> None:
    """Make the work pool of the web form; one that exists (409) is as good."""
    try:
        post(machine, "work_pools/", {"name": POOL, "type": "process"})
    except ServerError as error:
        if "409" not in str(error):
            raise


def last_heartbeat(machine: Machine) -> datetime | None:
    """When a worker of the pool last said that it is there."""
    workers = post(machine, f"work_pools/{POOL}/workers/filter", {})
    beats = [datetime.fromisoformat(w["last_heartbeat_time"]) for w in workers]
    return max(beats, default=None)


def bury_orphans(machine: Machine) -> list[str]:
    """Mark runs of the web form as crashed; call it only while no worker runs. Returns their names.

    A run whose worker is gone would stay Running for ever, and hold the one slot of its profile.
    """
    unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
    of_the_form = {"deployment_id": {"is_null_": False}}
    runs = post(machine, "flow_runs/filter", {"flow_runs": {**unfinished, **of_the_form}})
    message = "its worker ended; a retry continues from here"
    crashed = {"type": "CRASHED", "name": "Crashed", "message": message}
    for run in runs:
        post(machine, f"flow_runs/{run['id']}/set_state", {"state": crashed, "force": True})
    return [run["name"] for run in runs]


def post(machine: Machine, path: str, body: object) -> Any:
    """The JSON answer of Prefect's API; raises ServerError.

    Server errors are tried again: SQLite answers 503 while another request holds the database.
    """
    request = urllib.request.Request(
        f"{machine.prefect_api_url}/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    for pause_s in (0.2, 0.5, 1.0, 2.0, None):
        try:
            with _open(request, timeout_s=30.0) as response:
                return json.load(response)
        except OSError as error:
            passing = isinstance(error, urllib.error.HTTPError) and error.code >= 500
            if pause_s is None or not passing:
                raise ServerError(f"Prefect, {path}: {error}") from error
        time.sleep(pause_s)


def _open(request: str | urllib.request.Request, timeout_s: float) -> Any:
    """Loopback is never reached through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=timeout_s)
