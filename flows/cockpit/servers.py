"""`klear up`, `klear down` and `klear serve`: a Prefect server, an MLflow server and a worker.

Everything they own lies below the home folder (databases unless the servers' own variables name
others, results, logs). `klear up` starts what is missing and leaves nothing of a failed start
behind. A server whose address is set (KLEAR_PREFECT_URL, KLEAR_MLFLOW_URL) is somebody else's to
start.

Each runs in a session of its own, which all that it starts belongs to, also after its death. The
home folder notes which process it is, with the moment it began: pids are reused. No password is on
a command line: what is secret goes through the environment. Our few calls to Prefect's API do not
wait for `import prefect` (seconds).
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import httpx
import psutil

from ...configs.files import locked, replace_text
from ...configs.machine import DATABASES, MLFLOW_AUTH, Machine, load_machine, server_environment
from ...tasks.engine.stage_process import log_tail
from ...tasks.engine.supervise import descendants, is_alive

TAG = "klear"
START_TIMEOUT_S = 300.0
POOL, WORKER = "klear-local", f"klear-{socket.gethostname()}"
_UNDER_WAY = {
    "state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}},
    "deployment_id": {"is_null_": False},  # from a form, so in the hands of a worker
}
NAMES = ("prefect", "mlflow", "worker")
SILENT = "does not answer at"
NOT_FOR_WORKERS = (*DATABASES.values(), "KLEAR_DATABASE_PASSWORD", "PGPASSWORD")
PATIENCE_S = {signal.SIGTERM: 6.0, signal.SIGINT: 4.0, signal.SIGKILL: 5.0}
REGISTRATION_S = 300.0
CLOCK_S = 2.0  # what a corrected clock may move the start of a process by
PREFECT_LOG = Path(__file__).with_name("prefect_log.yaml")


class ServersError(RuntimeError):
    """A server or its database cannot be reached or started; the message says what to do."""


@cache
def _http(user: str, secret: str) -> httpx.Client:
    """Our own servers are never reached through a proxy."""
    auth = (user, secret) if secret else None
    return httpx.Client(auth=auth, trust_env=False, timeout=30.0)


def refusal(machine: Machine, server: str) -> str:
    """Why `prefect` or `mlflow` does not let us in, and what to do; '' if it does."""
    url = {
        "prefect": f"{machine.prefect_url}/api/admin/version",
        "mlflow": f"{machine.mlflow_url}/api/2.0/mlflow/experiments/search?max_results=1",
    }[server]
    try:
        status = _http(machine.user, machine.password.get_secret_value()).get(url).status_code
    except httpx.HTTPError as error:
        return f"{server} {SILENT} {url} (KLEAR_{server.upper()}_URL): {error}"
    if status not in (401, 403):
        return ""  # it let us in, or let us in and stumbled
    return (
        f"{server} refuses {machine.user} and asks for a password: set KLEAR_PASSWORD (and "
        "KLEAR_USER, if not klear); MLflow keeps the one it was first started with"
    )


def post(machine: Machine, path: str, body: object, method: str = "POST") -> Any:
    """The JSON answer of Prefect's API; raises ServersError. A server error is tried again: SQLite
    answers 503 while another request holds the database. So is an answer that takes too long: what
    ran meanwhile sends a server that is up again all that it missed."""
    for left in reversed(range(5)):
        try:
            http = _http(machine.user, machine.password.get_secret_value())
            answer = http.request(method, f"{machine.prefect_url}/api/{path}", json=body)
            if answer.status_code < 500 or not left:
                return answer.raise_for_status().content and answer.json()
        except httpx.HTTPError as error:
            if not (left and isinstance(error, httpx.TimeoutException)):
                raise ServersError(f"Prefect, {path}: {error}") from error
        time.sleep(1.0)


def create_pool(machine: Machine, limit: int | None = None) -> None:
    """Make the work pool of the web form, unless it is there: else registering a form fails. The
    `limit` of its queue is how many runs are under way at once."""
    with suppress(ServersError):
        post(machine, "work_pools/", {"name": POOL, "type": "process"})
    if limit:
        queue = f"work_pools/{POOL}/queues/default"
        post(machine, queue, {"concurrency_limit": limit}, "PATCH")


def crash_orphans(machine: Machine) -> None:
    """Mark this machine's runs of the web form as crashed; call it only while no worker runs here.
    A run whose worker is gone would stay Running for ever, and hold the one slot of its profile."""
    workers = post(machine, f"work_pools/{POOL}/workers/filter", {})
    alone = not any(w["status"] == "ONLINE" and w["name"] != WORKER for w in workers)
    # None: a worker ended before it wrote its name, or another machine's is about to write it.
    ours = (WORKER, None) if alone else (WORKER,)
    message = "its worker ended; a retry continues from here"
    crashed = {"type": "CRASHED", "name": "Crashed", "message": message}
    for run in post(machine, "flow_runs/filter", {"flow_runs": _UNDER_WAY}):
        if run["labels"].get("prefect.worker.name") in ours:
            post(machine, f"flow_runs/{run['id']}/set_state", {"state": crashed, "force": True})


def server_command(machine: Machine, name: str) -> list[str]:
    """The command of `prefect`, `mlflow`, `worker` or `registration`."""
    host, secret = ["--host", machine.host], machine.password.get_secret_value()
    module, *words = {
        # What `prefect server start --background` runs, without the command line around it.
        "prefect": ["uvicorn", "--factory", "prefect.server.api.server:create_app", "--log-config",
                    str(PREFECT_LOG), *host, "--port", str(machine.prefect_port)],
        "mlflow": ["mlflow", "server", "--workers", "1", *host, "--port", str(machine.mlflow_port),
                   "--artifacts-destination", f"{machine.home}/mlflow/artifacts",
                   *(["--app-name", "basic-auth"] if secret else [])],
        # The name is the same after a restart, for `crash_orphans`. No limit of its own beside
        # Prefect's server, which keeps that of the queue: with one, Prefect 3.7's worker ends when
        # a run is retried whose process has not quite ended.
        "worker": ["prefect", "worker", "start", "--pool", POOL, "--type", "process",
                   "--name", WORKER, *([] if machine.is_here("prefect") else
                                       ["--limit", str(machine.worker_limit)])],
        "registration": ["klear.flows.cockpit.registration"],
    }[name]  # fmt: skip
    return [sys.executable, "-P", "-m", module, *words]


def process_environment(machine: Machine, name: str) -> dict[str, str]:
    """All that the process sees. Flows have no business in the database."""
    unseen = NOT_FOR_WORKERS if name == "worker" else ()
    inherited = {n: v for n, v in os.environ.items() if n not in unseen}
    return {**inherited, **server_environment(machine, name)}


def prepare(machine: Machine, name: str) -> None:
    """Make what the command needs."""
    for folder in ("prefect", "mlflow/artifacts", "logs"):
        (machine.home / folder).mkdir(parents=True, exist_ok=True)
    if name == "mlflow" and machine.password.get_secret_value():
        # MLflow's users: in its own database, or in a file beside it. Others may only read.
        database = server_environment(machine, name)[DATABASES[name]]
        if database.startswith("sqlite"):
            database = f"sqlite:///{machine.home}/mlflow/auth.db"
        template = Path(__file__).with_name("mlflow_auth.ini").read_text()
        text = template.format(database=database.replace("%", "%%"), user=machine.user)
        replace_text(machine.home / MLFLOW_AUTH, text)


def record(machine: Machine, name: str) -> Path:
    """The file that says which process `klear up` started as this server."""
    return machine.home / "servers" / f"{name}.json"


def started(machine: Machine, name: str) -> tuple[int, psutil.Process | None]:
    """The session of the server that was started last (0: none was), and its process if it lives.
    A pid that is by now somebody else's has no session of ours any more."""
    try:
        pid, began = json.loads(record(machine, name).read_text())
        process = psutil.Process(pid)
    except FileNotFoundError:
        return 0, None
    except psutil.NoSuchProcess:  # its number may be that of another dead session by now
        return (pid if any(is_of(machine, p) for p in members(pid)) else 0), None
    ours = abs(process.create_time() - began) < CLOCK_S
    return (pid, process if is_alive(process) else None) if ours else (0, None)


def alive(machine: Machine) -> dict[str, psutil.Process]:
    """What `klear up` started and is running, by name."""
    processes = ((name, started(machine, name)[1]) for name in NAMES)
    return {name: process for name, process in processes if process}


def members(session: int) -> set[psutil.Process]:
    """The living processes of a session, and those below them in sessions of their own."""
    processes: set[psutil.Process] = set()
    for process in psutil.process_iter() if session else ():
        with suppress(OSError, psutil.Error):  # it ended
            if os.getsid(process.pid) == session:
                processes |= {process, *descendants(process.pid)}
    return {process for process in processes if is_alive(process)}


def is_of(machine: Machine, process: psutil.Process) -> bool:
    """Whether a process was started for this home."""
    with suppress(psutil.Error):
        return process.environ().get("KLEAR_HOME") == str(machine.home)
    return False


def is_outdated(machine: Machine, name: str, process: psutil.Process) -> bool:
    """Whether it would be started with another command or other settings by now."""
    before, now = process.environ(), server_environment(machine, name)
    changed = (n for n, value in now.items() if before.get(n) != value)
    command = server_command(machine, name)
    return process.cmdline()[1:] != command[1:] or any(n.upper() != "NO_PROXY" for n in changed)


@contextmanager
def registration(machine: Machine) -> Iterator[Callable[[], None]]:
    """What makes the web forms anew once the server answers; raises ServersError. It runs in a
    process, which imports Prefect until it is called."""
    prepare(machine, "registration")
    command, environment = server_command(machine, "registration"), process_environment(machine, "")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        command, **pipes, env=environment, cwd=machine.home, text=True
    ) as process:

        def register() -> None:
            try:
                output, _ = process.communicate(timeout=REGISTRATION_S)
            except subprocess.TimeoutExpired as error:
                raise ServersError(f"the forms could not be registered: {error}") from error
            if process.returncode:
                raise ServersError(f"the forms could not be registered:\n{output}")

        try:
            yield register
        finally:
            process.kill()


def start(machine: Machine, name: str, log: Path | None = None) -> psutil.Process:
    """Start `prefect`, `mlflow` or `worker`."""
    prepare(machine, name)
    environment = process_environment(machine, name)
    return launch(server_command(machine, name), environment, machine.home, log)


def launch(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path | None = None
) -> psutil.Process:
    """Start a process in a session of its own; `environment` is all that it sees; `log` is appended
    to (None: it writes where we do)."""
    with log.open("ab") if log else nullcontext() as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file and subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
    process.returncode = 0  # it outlives us on purpose: no "still running" warning
    return psutil.Process(process.pid)


def stop(*sessions: int) -> None:
    """End all of these sessions: TERM, then INT, then KILL. Two signals because a Prefect worker
    only forwards the first one and lives on."""
    processes: set[psutil.Process] = set()
    for sign, patience in PATIENCE_S.items():
        processes |= {process for session in sessions for process in members(session)}
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
        _, left = psutil.wait_procs(processes, timeout=patience)
        processes = set(filter(is_alive, left))  # what is left of others' children is a zombie
        if not processes:
            return


def servers_here(machine: Machine) -> dict[str, int]:
    """Those that `klear up` starts, and their ports."""
    ports = {"prefect": machine.prefect_port, "mlflow": machine.mlflow_port}
    return {name: port for name, port in ports.items() if machine.is_here(name)}


def why_down(machine: Machine) -> str:
    """Why a run cannot use both servers (another project's may answer), in lines; '' if it can."""
    if servers_here(machine).keys() - alive(machine):
        return "the servers are not up: run `klear up` first"
    return "\n".join(filter(None, (refusal(machine, n) for n in ("prefect", "mlflow"))))


def port_trouble(machine: Machine, name: str) -> str:
    """Why a server that `klear up` starts cannot have its port; nothing if it can."""
    port = servers_here(machine)[name]
    family = socket.AF_INET6 if ":" in machine.host else socket.AF_INET
    with suppress(OSError):
        socket.create_server((machine.host, port), family=family).close()
        return ""
    return f"port {port} is in use: set KLEAR_{name.upper()}_PORT to a free one"


def up() -> None:
    """Start Prefect, MLflow, a worker and the forms here. Raises ServersError, leaving none."""
    machine = load_machine()
    with locked(machine.home / "servers.lock"):
        running, since = alive(machine), time.monotonic()
        if outdated := [name for name, p in running.items() if is_outdated(machine, name, p)]:
            names = ", ".join(outdated)
            raise ServersError(f"settings have changed since {names} started: first `klear down`")
        missing = [name for name in NAMES if name not in running]
        stop(*(started(machine, name)[0] for name in missing))  # what they left behind
        try:
            begun = _start_missing(machine, running)
        except BaseException:
            stop(*(started(machine, name)[0] for name in missing))
            raise
        summary = f"started {', '.join(begun)} in {time.monotonic() - since:.0f} s"
        print(summary if begun else "already up")
        print(f"Prefect  {machine.prefect_url}\nMLflow   {machine.mlflow_page}")


def _start_missing(machine: Machine, running: Collection[str]) -> Collection[str]:
    """The names of what it starts: both servers at once, the worker and the registration of the
    forms behind Prefect."""
    begun: dict[str, psutil.Process] = {}

    def log_of(name: str) -> Path:
        return machine.home / "logs" / f"{name}.log"

    def begin(name: str) -> None:
        process = begun[name] = start(machine, name, log_of(name))
        record(machine, name).parent.mkdir(exist_ok=True)
        replace_text(record(machine, name), json.dumps([process.pid, process.create_time()]))

    def starts(name: str) -> bool:
        if name in begun and not is_alive(begun[name]):
            tail = log_tail(log_of(name))
            raise ServersError(migration(machine, tail) or f"{name} ended while starting{tail}")
        return name in begun

    missing = [name for name in servers_here(machine) if name not in running]
    if taken := next(filter(None, (port_trouble(machine, name) for name in missing)), ""):
        raise ServersError(taken)
    for name in missing:
        begin(name)
    if begun:
        print(f"starting the servers (their logs: {machine.home}/logs)")
    with registration(machine) as register:
        await_server(machine, "prefect", partial(starts, "prefect"))
        create_pool(machine, machine.worker_limit if machine.is_here("prefect") else None)
        if "worker" not in running:
            if machine.is_here("prefect"):
                crash_orphans(machine)
            begin("worker")
        register()
    await_server(machine, "mlflow", partial(starts, "mlflow"))
    starts("worker")
    return begun


def migration(machine: Machine, log: str) -> str:
    """What to do about a database of an older MLflow, where `log` says that it is one. It is left
    to the user: an older MLflow cannot read it afterwards."""
    if "out-of-date database schema" not in log:
        return ""
    file = machine.home / "mlflow/mlflow.db"
    database = server_environment(machine, "mlflow")[DATABASES["mlflow"]]
    is_ours = database.endswith(f"{file}")
    copy = shlex.join(["cp", f"{file}", f"{file}.old"]) if is_ours else "back it up"
    upgrade = [f"{Path(sys.executable).parent}/mlflow", "db", "upgrade", database]
    return (
        "MLflow does not read its database, which an older MLflow wrote. First "
        f"{copy}, then:\n{shlex.join(upgrade)}\nand `klear up` again"
    )


def await_server(machine: Machine, name: str, starts: Callable[[], bool] = lambda: True) -> None:
    """Wait for it as long as it `starts`. Raises ServersError where it does not let us in."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while SILENT in (wrong := refusal(machine, name)) and starts() and time.monotonic() < deadline:
        time.sleep(0.1)
    if wrong:
        raise ServersError(wrong)


def down() -> None:
    """End what `klear up` started and nothing else; safe to repeat."""
    machine = load_machine()
    with locked(machine.home / "servers.lock"):
        running = alive(machine)
        sessions = {name: started(machine, name)[0] for name in NAMES}
        stop(sessions.pop("worker"))  # it needs the server to sign off
        stop(*sessions.values())
        for name in NAMES:
            record(machine, name).unlink(missing_ok=True)
    for name, process in running.items():
        print(f"ended {name} (pid {process.pid})")
    if not running:
        print("nothing is running")


def _end(_: int, __: FrameType | None) -> None:
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)  # once is enough: what follows takes its time
    raise SystemExit(0)


def serve(name: Literal["prefect", "mlflow", "worker"], /) -> int:
    """One of them in the foreground, for containers and systemd. TERM and INT end it with
    everything it started: exit code 0, else that of what it ran."""
    machine = load_machine()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _end)
    if name == "worker":
        with registration(machine) as register:
            await_server(machine, "prefect")
            create_pool(machine)
            register()
    process = start(machine, name)  # in a session of its own: Ctrl-C reaches us alone
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    finally:
        stop(process.pid)
    print(f"{name} ended with exit code {code}", file=sys.stderr, flush=True)
    return code if code >= 0 else os.EX_SOFTWARE
