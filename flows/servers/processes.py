"""The long-running processes of klear: how each is called, started, recognised later, ended whole.

No password is on a command line: what is secret goes through the environment. A pid alone is no
identity (pids are reused, pid files outlive reboots), so every process that we start, and all that
it starts, carries a mark of its own in its environment.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from klear.configs.files import replace_text
from klear.configs.machine import NOT_FOR_WORKERS, Machine, server_environment
from klear.eval.records import Record
from klear.flows.servers.prefect_api import POOL, ServersError, worker_name
from klear.tasks.stage.supervise import descendants, is_alive

MARK = "KLEAR_SERVER_MARK"
PATIENCE_S = {signal.SIGTERM: 6.0, signal.SIGINT: 4.0, signal.SIGKILL: 5.0}
DATABASE_WAIT_S = 60.0
REGISTRATION_S = 300.0
CONNECT_TIMEOUT_S = 5


def server_command(machine: Machine, name: str) -> list[str]:
    """The command of `prefect`, `mlflow`, `worker` or `registration`."""
    host, secret = ["--host", machine.host], machine.password.get_secret_value()
    module, *words = {
        # What `prefect server start --background` runs, without the command line around it.
        "prefect": ["uvicorn", "--factory", "prefect.server.api.server:create_app",
                    *host, "--port", str(machine.prefect_port)],
        "mlflow": ["mlflow", "server", "--workers", "1", *host, "--port", str(machine.mlflow_port),
                   "--artifacts-destination", str(machine.mlflow_artifacts),
                   *(["--app-name", "basic-auth"] if secret else [])],
        # The name is the same after a restart, for `crash_orphans`.
        "worker": ["prefect", "worker", "start", "--pool", POOL, "--type", "process",
                   "--name", worker_name(), "--limit", str(machine.worker_limit)],
        "registration": ["klear.flows.forms.registration"],
    }[name]  # fmt: skip
    return [sys.executable, "-P", "-m", module, *words]


def process_environment(machine: Machine, name: str) -> dict[str, str]:
    """All that the process sees. Flows have no business in the database."""
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


def prepare(machine: Machine, name: str, wait_s: float = DATABASE_WAIT_S) -> None:
    """Make what must be there before the command is run; raises ServersError for a Postgres that
    cannot be used within `wait_s` seconds."""
    for folder in (machine.home, machine.prefect_home, machine.mlflow_artifacts, machine.logs):
        folder.mkdir(parents=True, exist_ok=True)
    if name in ("prefect", "mlflow") and machine.postgres:
        deadline = time.monotonic() + wait_s
        while wrong := database_trouble(machine, name):
            if time.monotonic() > deadline:
                raise ServersError(f"Postgres at {machine.postgres}: {wrong}")
            time.sleep(0.5)
    if name == "mlflow" and machine.password.get_secret_value():
        # MLflow's users: in its own database, or in a file beside it. Others may only read.
        beside = f"sqlite:///{machine.mlflow_auth.with_suffix('.db')}"
        database = machine.mlflow_database if machine.postgres else beside
        template = Path(__file__).with_name("mlflow_auth.ini").read_text()
        text = template.format(database=database.replace("%", "%%"), user=machine.user)
        replace_text(machine.mlflow_auth, text)


def database_trouble(machine: Machine, server: str) -> str:
    """Why the Postgres database of a server cannot be used, in a line; '' if it can. One that is
    missing is made; the servers themselves migrate it."""
    import psycopg2

    postgres = machine.postgres
    assert postgres is not None
    name = postgres.database(server)

    def connect(database: str) -> Any:
        return psycopg2.connect(
            postgres.url("postgresql", database),
            password=postgres.password or None,  # None: PGPASSWORD, ~/.pgpass
            connect_timeout=CONNECT_TIMEOUT_S,
        )

    try:
        connect(name).close()
    except psycopg2.Error as error:
        wrong = " ".join(str(error).split()) or type(error).__name__
        if f'database "{name}" does not exist' not in wrong:
            return wrong
        try:
            with closing(connect("postgres")) as session:
                session.autocommit = True  # CREATE DATABASE runs in no transaction
                # Two at once must not share template1 with whoever looks at it.
                session.cursor().execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        except psycopg2.Error as refused:
            return f"{wrong} ({' '.join(str(refused).split())}); let an administrator make it"
    return ""


class ServerProcess(Record):
    """What is needed to find a process again and to be sure that it is the same one."""

    name: str
    pid: int
    mark: str
    log: Path | None
    """None: it writes where we do."""
    settings: str = ""
    """What it was started with, as a digest."""

    def alive(self) -> bool:
        with suppress(psutil.Error):
            return psutil.Process(self.pid).environ().get(MARK) == self.mark
        return False

    def family(self) -> set[psutil.Process]:
        """It and all that it started, also when it is gone itself."""
        found: set[psutil.Process] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it ended, or is another user's
                if process.environ().get(MARK) == self.mark:
                    found |= {process, *descendants(process.pid)}
        return {process for process in found if is_alive(process)}


def register_forms(machine: Machine) -> None:
    """Make the web forms anew, in a process: it imports Prefect. Raises ServersError."""
    prepare(machine, "registration")
    command, environment = server_command(machine, "registration"), process_environment(machine, "")
    asked: dict[str, Any] = {"env": environment, "cwd": machine.home, "timeout": REGISTRATION_S}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, **asked)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ServersError(f"the forms could not be registered: {error}\n{error.stderr}") from error


def start(machine: Machine, name: str, log: Path | None = None) -> ServerProcess:
    """Start `prefect`, `mlflow` or `worker`, once what it needs is there. Raises ServersError."""
    prepare(machine, name)
    return launch(
        name,
        server_command(machine, name),
        environment=process_environment(machine, name),
        log=log,
        cwd=machine.home,
        settings=settings_digest(machine, name),
    )


def launch(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    log: Path | None = None,
    settings: str = "",
) -> ServerProcess:
    """Start a process in a session of its own; `environment` is all that it sees, `log` is
    appended to."""
    mark = uuid.uuid4().hex
    with log.open("ab") if log else nullcontext() as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file and subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env={**environment, MARK: mark},
        )
    process.returncode = 0  # it outlives us on purpose: no "still running" warning
    server = ServerProcess(name=name, pid=process.pid, mark=mark, log=log, settings=settings)
    while not server.alive() and is_alive(psutil.Process(server.pid)):
        time.sleep(0.001)  # its environment cannot be read until exec is done
    return server


def stop(processes: Sequence[ServerProcess]) -> None:
    """End each process with all that it started: TERM, then INT, then KILL. Two signals because a
    Prefect worker only forwards the first one and lives on."""
    family: set[psutil.Process] = set()
    for sign, patience in PATIENCE_S.items():
        family |= {member for process in processes for member in process.family()}
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(sign)
        _, alive = psutil.wait_procs(family, timeout=patience)
        family = set(filter(is_alive, alive))  # what is left of others' children is a zombie
        if not family:
            return
