"""How each long-running process of klear is called, the same for `klear up` and `klear serve`.

No password is on a command line: what is secret goes through the environment.
"""

import hashlib
import os
import secrets
import sys
from configparser import ConfigParser

from configs.machine import Machine
from configs.machine_environment import NOT_FOR_WORKERS, server_environment
from flows.database import prepare_database
from flows.prefect_api import POOL, worker_name
from flows.registration import registration_command

SERVED = ("prefect", "mlflow", "worker")
REGISTER_WITHIN_S = 300.0
_PYTHON = (sys.executable, "-P")


def server_command(machine: Machine, name: str) -> list[str]:
    return {
        "prefect": _prefect,
        "mlflow": _mlflow,
        "worker": _worker,
        "registration": lambda _: registration_command(wait_s=REGISTER_WITHIN_S),
    }[name](machine)


def _unseen_by(name: str) -> tuple[str, ...]:
    """Variables that a process must not inherit: flows have no business in the database."""
    return NOT_FOR_WORKERS if name == "worker" else ()


def process_environment(machine: Machine, name: str) -> dict[str, str]:
    """All that the process sees; `prepare` has run."""
    inherited = {n: v for n, v in os.environ.items() if n not in _unseen_by(name)}
    found = {**inherited, **server_environment(machine, name)}
    if name == "mlflow" and machine.password.get_secret_value():
        found["MLFLOW_FLASK_SERVER_SECRET_KEY"] = _form_key(machine)
    return found


def settings_digest(machine: Machine, name: str) -> str:
    """Equal for processes that would be started alike: 16 digits of the command and its settings.

    What only another process reads is left out, so that a change restarts no more than it must.
    """
    found = server_environment(machine, name)
    of_others = {"NO_PROXY", "no_proxy"}
    others = {"prefect": ("KLEAR_", "MLFLOW_"), "mlflow": ("KLEAR_", "PREFECT_")}.get(name, ())
    of_others |= {n for n in found if n.startswith(others)}
    told = {n: v for n, v in sorted(found.items()) if n not in of_others}
    text = repr((server_command(machine, name), told))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(machine: Machine, name: str, wait_s: float) -> None:
    """What must be there before the command is run; raises DatabaseError."""
    for folder in (machine.home, machine.prefect_home, machine.mlflow_artifacts, machine.logs):
        folder.mkdir(parents=True, exist_ok=True)
    if name in ("prefect", "mlflow"):
        prepare_database(machine, name, wait_s)
    if name == "mlflow" and machine.password.get_secret_value():
        _write_auth(machine)


def _prefect(machine: Machine) -> list[str]:
    """What `prefect server start --background` runs, without the command line around it."""
    app = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    return [*_PYTHON, *app, "--host", machine.host, "--port", str(machine.prefect_port)]


def _mlflow(machine: Machine) -> list[str]:
    server = [*_PYTHON, "-m", "mlflow", "server", "--workers", "1"]
    server += ["--host", machine.host, "--port", str(machine.mlflow_port)]
    server += ["--artifacts-destination", str(machine.mlflow_artifacts)]
    return server + (["--app-name", "basic-auth"] if machine.password.get_secret_value() else [])


def _worker(machine: Machine) -> list[str]:
    worker = [*_PYTHON, "-m", "prefect", "worker", "start", "--pool", POOL]
    worker += ["--name", worker_name()]  # the same after a restart, for `bury_orphans`
    return [*worker, "--type", "process", "--limit", str(machine.worker_limit)]


def _write_auth(machine: Machine) -> None:
    """MLflow's users: in its own database, or in a file beside it. Others may only read."""
    users = machine.mlflow_auth.with_suffix(".db")
    database = machine.mlflow_database if machine.postgres else f"sqlite:///{users}"
    config = ConfigParser()
    config["mlflow"] = {
        "default_permission": "READ",
        "database_uri": database.replace("%", "%%"),
        "admin_username": machine.user,
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        "auth_cache_ttl_seconds": "60",  # or every request pays for a slow hash
    }
    partial = machine.mlflow_auth.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        config.write(file)
    os.replace(partial, machine.mlflow_auth)


def _form_key(machine: Machine) -> str:
    """What MLflow signs its forms with: made once, and the same after a restart."""
    path = machine.mlflow_auth.with_suffix(".key")
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    return path.read_text()
