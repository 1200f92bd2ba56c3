"""The few calls to our servers that must not wait for `import prefect` (seconds)."""

import socket
import time
from contextlib import suppress
from functools import cache
from typing import Any

import httpx

from klear.configs.machine import Machine

POOL = "klear-local"
TRIES = 5
_UNDER_WAY = {
    "state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}},
    "deployment_id": {"is_null_": False},  # from a form, so in the hands of a worker
}


class ServersError(RuntimeError):
    """A server or its database cannot be reached or started; the message says what to do."""


@cache
def _http(login: tuple[str, str] | None = None) -> httpx.Client:
    """Our own servers are never reached through a proxy."""
    return httpx.Client(auth=login, trust_env=False, timeout=30.0)


def _login(machine: Machine) -> tuple[str, str] | None:
    secret = machine.password.get_secret_value()
    return (machine.user, secret) if secret else None


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether GET `url` succeeds."""
    with suppress(httpx.HTTPError):
        return _http().get(url, timeout=timeout_s).status_code == 200
    return False


def refusal(machine: Machine, server: str) -> str:
    """Why `prefect` or `mlflow` does not let us in, and what to do; '' if it does."""
    url = {
        "prefect": f"{machine.prefect_api_url}/admin/version",
        "mlflow": f"{machine.mlflow_url}/api/2.0/mlflow/experiments/search?max_results=1",
    }[server]
    try:
        status = _http(_login(machine)).get(url).status_code
    except httpx.HTTPError as error:
        return f"{server} does not answer at {url} (KLEAR_{server.upper()}_URL): {error}"
    if status not in (401, 403):
        return ""  # it let us in, or let us in and stumbled
    return (
        f"{server} refuses {machine.user} and asks for a password: set KLEAR_PASSWORD (and "
        "KLEAR_USER, if not klear); MLflow keeps the one it was first started with"
    )


def post(machine: Machine, path: str, body: object) -> Any:
    """The JSON answer of Prefect's API; raises ServersError. A server error is tried again: SQLite
    answers 503 while another request holds the database."""
    for left in reversed(range(TRIES)):
        try:
            url = f"{machine.prefect_api_url}/{path}"
            answer = _http(_login(machine)).post(url, json=body)
            if answer.status_code < 500 or not left:
                return answer.raise_for_status().json()
        except httpx.HTTPError as error:
            raise ServersError(f"Prefect, {path}: {error}") from error
        time.sleep(1.0)


def create_pool(machine: Machine) -> None:
    """Make the work pool of the web form; one that exists (409) is as good."""
    try:
        post(machine, "work_pools/", {"name": POOL, "type": "process"})
    except ServersError as error:
        if "409" not in str(error):
            raise


def worker_name() -> str:
    """Of the worker on this machine."""
    return f"klear-{socket.gethostname()}"


def crash_orphans(machine: Machine) -> None:
    """Mark this machine's runs of the web form as crashed; call it only while no worker runs here.
    A run whose worker is gone would stay Running for ever, and hold the one slot of its profile."""
    workers = post(machine, f"work_pools/{POOL}/workers/filter", {})
    alone = not any(w["status"] == "ONLINE" and w["name"] != worker_name() for w in workers)
    # None: a worker ended before it wrote its name, or another machine's is about to write it.
    ours = (worker_name(), None) if alone else (worker_name(),)
    message = "its worker ended; a retry continues from here"
    crashed = {"type": "CRASHED", "name": "Crashed", "message": message}
    for run in post(machine, "flow_runs/filter", {"flow_runs": _UNDER_WAY}):
        if run["labels"].get("prefect.worker.name") in ours:
            post(machine, f"flow_runs/{run['id']}/set_state", {"state": crashed, "force": True})
