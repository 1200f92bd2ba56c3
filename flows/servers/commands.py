"""How each long-running process of klear is called, the same for `klear up` and `klear serve`.

No password is on a command line: what is secret goes through the environment.
"""

import hashlib
import os
import sys
import time
from configparser import ConfigParser
from contextlib import closing, suppress
from io import StringIO
from pathlib import Path

from configs.files import replace_text
from configs.machine import NOT_FOR_WORKERS, Machine, server_environment
from flows.servers.prefect_api import POOL, ServersError, post, worker_name

SERVED = ("prefect", "mlflow", "worker")
ROOT = Path(__file__).resolve().parents[2]
CONNECT_TIMEOUT_S = 5


def server_command(machine: Machine, name: str) -> list[str]:
    """The command of `prefect`, `mlflow`, `worker` or `registration`."""
    python = [sys.executable, "-P"]
    if name == "prefect":
        # What `prefect server start --background` runs, without the command line around it.
        app = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
        return [*python, *app, "--host", machine.host, "--port", str(machine.prefect_port)]
    if name == "mlflow":
        server = [*python, "-m", "mlflow", "server", "--workers", "1", "--host", machine.host]
        server += ["--port", str(machine.mlflow_port)]
        server += ["--artifacts-destination", str(machine.mlflow_artifacts)]
        asks = machine.password.get_secret_value()
        return [*server, "--app-name", "basic-auth"] if asks else server
    if name == "worker":
        worker = [*python, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        # The name is the same after a restart, for `crash_orphans`.
        return [*worker, "--name", worker_name(), "--limit", str(machine.worker_limit)]
    return [*python, "-m", "flows.servers.registration"]


def process_environment(machine: Machine, name: str) -> dict[str, str]:
    """All that the process sees; `prepare` has run. Flows have no business in the database."""
    unseen = NOT_FOR_WORKERS if name == "worker" else ()
    inherited = {n: v for n, v in os.environ.items() if n not in unseen}
    found = {**inherited, **server_environment(machine, name)}
    if name == "mlflow" and machine.password.get_secret_value():
        word = f"mlflow forms {machine.password.get_secret_value()}"  # the same after a restart
        found["MLFLOW_FLASK_SERVER_SECRET_KEY"] = hashlib.sha256(word.encode()).hexdigest()
    return found


def settings_digest(machine: Machine, name: str) -> str:
    """Equal for processes that would be started alike: 16 digits of command and settings."""
    found = server_environment(machine, name)
    of_server = {n: v for n, v in sorted(found.items()) if n.upper() != "NO_PROXY"}  # the shell's
    text = repr((server_command(machine, name), of_server))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(machine: Machine, name: str, wait_s: float) -> None:
    """Make what must be there before the command is run; raises ServersError.

    Waits up to `wait_s` seconds for a Postgres that is starting.
    """
    for folder in (machine.home, machine.prefect_home, machine.mlflow_artifacts, machine.logs):
        folder.mkdir(parents=True, exist_ok=True)
    if name in ("prefect", "mlflow") and machine.postgres:
        deadline = time.monotonic() + wait_s
        while wrong := database_trouble(machine, name, create=True):
            if time.monotonic() > deadline:
                raise ServersError(f"Postgres at {machine.postgres}: {wrong}")
            time.sleep(0.5)
    if name == "mlflow" and machine.password.get_secret_value():
        _write_auth(machine)


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
    config.write(text := StringIO())
    replace_text(machine.mlflow_auth, text.getvalue())


def database_trouble(machine: Machine, server: str, create: bool = False) -> str:
    """Why the Postgres database of a server cannot be used, in a line; nothing if it can.

    With `create` it is made if it is what is missing; the servers themselves migrate it.
    """
    import psycopg2

    postgres = machine.postgres
    if postgres is None:
        return ""
    name = postgres.database(server)
    where = {
        "host": postgres.socket or postgres.host,
        "port": postgres.port,
        "user": postgres.user,
        "password": postgres.password or None,  # None: PGPASSWORD, ~/.pgpass
        "connect_timeout": CONNECT_TIMEOUT_S,
    }
    try:
        psycopg2.connect(dbname=name, **where).close()
        return ""
    except psycopg2.Error as error:
        wrong = " ".join(str(error).split()) or type(error).__name__
    if not create or f'"{name}" does not exist' not in wrong:
        return wrong
    try:
        with closing(psycopg2.connect(dbname="postgres", **where)) as session:
            session.autocommit = True  # CREATE DATABASE runs in no transaction
            with suppress(psycopg2.errors.DuplicateDatabase), session.cursor() as cursor:
                # Two at once must not share template1 with whoever looks at it.
                cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return ""
    except psycopg2.Error as error:
        administrator = f"createdb --owner {postgres.user} --template template0 {name}"
        return f"{wrong} ({' '.join(str(error).split())}); as an administrator: {administrator}"


def registration_is_current(machine: Machine) -> bool:
    """Whether Prefect, which is up, holds forms made from the present files."""
    stamp = _stamp(machine)
    is_current = stamp.exists() and stamp.read_text() == fingerprint(machine)
    return is_current and post(machine, "deployments/count", {}) > 0


def mark_registered(machine: Machine, seen: str) -> None:
    """Remember the `fingerprint` taken before the forms were made: a later edit makes it stale."""
    replace_text(_stamp(machine), seen)


def _stamp(machine: Machine) -> Path:
    return machine.prefect_home / "registered.txt"


def fingerprint(machine: Machine) -> str:
    """SHA-256 over what the forms are made of: profiles, settings, flows, and machine settings."""
    files = [f for kind in ("yaml", "toml", "py") for f in (ROOT / "configs").rglob(f"*.{kind}")]
    files += [*(ROOT / "flows").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]
    database = f"{machine.postgres}/{machine.postgres.name}" if machine.postgres else ""
    of_machine = (machine.form_profile, machine.zombie_minutes, machine.prefect_url)
    of_machine += (machine.mlflow_url, database, machine.webhook.get_secret_value())
    digest = hashlib.sha256(repr((str(ROOT), *of_machine)).encode())
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()
