"""The few calls to our servers that must not wait for `import prefect` (seconds)."""

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

from configs.machine import Machine

POOL = "klear-local"
_UNDER_WAY = {
    "state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}},
    "deployment_id": {"is_null_": False},  # from a form, so in the hands of a worker
}


class ServersError(RuntimeError):
    """A server or its database cannot be reached or started; the message says what to do."""


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether GET `url` succeeds."""
    try:
        with _open(url, timeout_s) as response:
            return response.status == 200
    except OSError:  # refused, timed out, or an HTTP error: all are OSErrors
        return False


def refusal(machine: Machine, server: str) -> str:
    """Why `prefect` or `mlflow` does not let us in, and what to do; nothing if it does."""
    path = {
        "prefect": f"{machine.prefect_api_url}/admin/version",
        "mlflow": f"{machine.mlflow_uri}/api/2.0/mlflow/experiments/search?max_results=1",
    }[server]
    try:
        with _open(urllib.request.Request(path, headers=_credentials(machine)), 30.0):
            return ""
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            return ""  # it let us in, and stumbled
    except OSError as error:
        return f"{server} gives no answer at {path} ({error})"
    if not machine.password.get_secret_value():
        return f"{server} asks for a password: set KLEAR_PASSWORD (and KLEAR_USER, if not klear)"
    first = "; MLflow keeps the one it was first started with" if server == "mlflow" else ""
    return f"{server} refuses {machine.user} with the password in KLEAR_PASSWORD{first}"


def _credentials(machine: Machine) -> dict[str, str]:
    secret = machine.password.get_secret_value()
    token = base64.b64encode(f"{machine.user}:{secret}".encode()).decode()
    return {"Authorization": f"Basic {token}"} if secret else {}


def create_pool(machine: Machine) -> None:
    """Make the work pool of the web form; one that exists (409) is as good."""
    try:
        post(machine, "work_pools/", {"name": POOL, "type": "process"})
    except ServersError as error:
        if "409" not in str(error):
            raise


def last_heartbeat(machine: Machine) -> datetime | None:
    """When a worker of the pool last said that it is there."""
    workers = post(machine, f"work_pools/{POOL}/workers/filter", {})
    return max((datetime.fromisoformat(w["last_heartbeat_time"]) for w in workers), default=None)


def worker_name() -> str:
    """Of the worker on this machine."""
    return f"klear-{socket.gethostname()}"


def crash_orphans(machine: Machine) -> list[str]:
    """Mark this machine's runs of the web form as crashed; call it only while no worker runs here.

    A run whose worker is gone would stay Running for ever, and hold the one slot of its profile.
    Returns the names of the runs.
    """
    workers = post(machine, f"work_pools/{POOL}/workers/filter", {})
    alone = not any(w["status"] == "ONLINE" and w["name"] != worker_name() for w in workers)
    ours = {worker_name(), ""} if alone else {worker_name()}  # "": nobody has taken it yet
    runs = post(machine, "flow_runs/filter", {"flow_runs": _UNDER_WAY})
    runs = [run for run in runs if run["labels"].get("prefect.worker.name", "") in ours]
    message = "its worker ended; a retry continues from here"
    crashed = {"type": "CRASHED", "name": "Crashed", "message": message}
    for run in runs:
        post(machine, f"flow_runs/{run['id']}/set_state", {"state": crashed, "force": True})
    return [run["name"] for run in runs]


def post(machine: Machine, path: str, body: object, tries: int = 5) -> Any:
    """The JSON answer of Prefect's API; raises ServersError.

    Server errors are tried again: SQLite answers 503 while another request holds the database.
    """
    request = urllib.request.Request(
        f"{machine.prefect_api_url}/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **_credentials(machine)},
    )
    for left in reversed(range(tries)):
        try:
            with _open(request, timeout_s=30.0) as response:
                return json.load(response)
        except OSError as error:
            is_busy = isinstance(error, urllib.error.HTTPError) and error.code >= 500
            if not left or not is_busy:
                raise ServersError(f"Prefect, {path}: {error}") from error
        time.sleep(1.0)


def _open(request: str | urllib.request.Request, timeout_s: float) -> Any:
    """Our own servers are never reached through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=timeout_s)
