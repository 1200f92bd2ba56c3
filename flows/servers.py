"""`klear up` and `klear down`: a Prefect server, an MLflow server and a worker on this machine.

Everything they own lies below the home folder (databases unless they are in Postgres, results,
logs), `servers.json` there says which processes are ours. `up` starts what is missing, starts anew
what has other settings now, and leaves nothing of a failed start behind. A server whose address is
set (KLEAR_PREFECT_URL, KLEAR_MLFLOW_URL) is somebody else's to start.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from configs.machine import Machine
from flows.database import DatabaseError
from flows.prefect_api import (
    ServerError,
    answers,
    bury_orphans,
    create_pool,
    last_heartbeat,
    refusal,
)
from flows.registration import registration_is_current
from flows.server_commands import prepare, process_environment, server_command, settings_digest
from flows.server_process import (
    ServerProcess,
    launch,
    port_holder,
    port_is_taken,
    reap,
    runs_of,
    stop,
)

START_TIMEOUT_S = 300.0
DATABASE_WAIT_S = 15.0
ANSWER_WITHIN_S = 30.0  # a busy machine is slow; a server that is gone refuses at once
Say = Callable[[str], None]


class ServersError(RuntimeError):
    """The servers could not be started; the message says what to do."""


def read_state(machine: Machine) -> list[ServerProcess]:
    """The processes the last `up` recorded, alive or not."""
    if not machine.state_file.exists():
        return []
    try:
        entries = json.loads(machine.state_file.read_text(encoding="utf-8"))
        return [ServerProcess.model_validate(entry) for entry in entries]
    except ValueError as error:
        raise ServersError(
            f"{machine.state_file} is damaged ({error}); end the servers by hand and delete it"
        ) from error


def alive(machine: Machine) -> dict[str, ServerProcess]:
    """The recorded processes that are running, by name."""
    return {p.name: p for p in read_state(machine) if p.alive()}


def are_up(machine: Machine) -> bool:
    """Whether both servers answer, and are ours (another project's may sit on the same ports).

    Raises ServersError about a server that is not `klear up`'s to start, and about a password.
    """
    running, here = alive(machine), servers_here(machine)
    for name, url in health_urls(machine).items():
        if not answers(url, ANSWER_WITHIN_S):
            if name in here:
                return False
            raise ServersError(f"{name} does not answer at {url} (KLEAR_{name.upper()}_URL)")
        if name in here and name not in running:
            return False
    _check_access(machine)
    return True


def _check_access(machine: Machine) -> None:
    if refused := "\n".join(filter(None, (refusal(machine, n) for n in health_urls(machine)))):
        raise ServersError(refused)


def servers_here(machine: Machine) -> list[str]:
    """Those that `klear up` starts."""
    here = {"prefect": machine.prefect_is_here, "mlflow": machine.mlflow_is_here}
    return [name for name, is_here in here.items() if is_here]


def health_urls(machine: Machine) -> dict[str, str]:
    return {
        "prefect": f"{machine.prefect_api_url}/health",
        "mlflow": f"{machine.mlflow_uri}/health",
    }


def up(machine: Machine, say: Say = print) -> None:
    """Start what is missing; raises ServersError after ending all that this call started."""
    machine.make_home()
    with _one_at_a_time(machine):
        outdated = _outdated(machine, say)
        running = {n: p for n, p in alive(machine).items() if n not in outdated}
        stop([p for p in read_state(machine) if p.name not in running])  # what they left behind
        begun: list[ServerProcess] = []
        since = time.monotonic()
        try:
            _start_missing(machine, running, begun, say)
        except BaseException as error:
            stop(begun)
            _write_state(machine, running.values())
            if isinstance(error, (ServerError, DatabaseError)):
                raise ServersError(str(error)) from error
            raise
        names = ", ".join(p.name for p in begun)
        say(f"started {names} in {time.monotonic() - since:.0f} s" if names else "already up")
        say(f"Prefect  {machine.prefect_url}\nMLflow   {machine.mlflow_uri}")


def _outdated(machine: Machine, say: Say) -> set[str]:
    """What runs with other settings than those of now, and can be started anew."""
    here = alive(machine)
    others = {
        name
        for name, process in here.items()
        if process.settings not in ("", settings_digest(machine, name))
    }
    busy = runs_of(here["worker"]) if others and "worker" in here else 0
    if not busy:
        return others
    runs = "1 run is" if busy == 1 else f"{busy} runs are"
    keep = "keeps its" if len(others) == 1 else "keep their"
    names = " and ".join(sorted(others))
    say(f"{names} {keep} old settings while {runs} under way; later: klear up")
    return set()


def down(machine: Machine, say: Say = print) -> None:
    """End the recorded processes and nothing else; safe to repeat."""
    if not machine.home.exists():
        say("nothing is running")
        return
    with _one_at_a_time(machine):
        recorded = read_state(machine)
        running = [p for p in recorded if p.alive()]
        stop([p for p in recorded if p.name == "worker"])  # it needs the server to sign off
        if any(p.name == "prefect" for p in running):  # else its runs may be other machines'
            _bury(machine, say)
        stop([p for p in recorded if p.name != "worker"])
        _write_state(machine, [])
        for process in running:
            say(f"ended {process.name} (pid {process.pid})")
        if not running:
            say("nothing is running")


def _bury(machine: Machine, say: Say) -> None:
    """Best effort: `up` does it again before it starts a worker."""
    try:
        for name in bury_orphans(machine):
            say(f"ended the run {name}; a retry continues from there")
    except ServerError as error:
        say(f"unfinished runs stay marked as running until the next `klear up` ({error})")


def _start_missing(
    machine: Machine, running: dict[str, ServerProcess], begun: list[ServerProcess], say: Say
) -> None:
    _refuse_taken_ports(machine, running)
    for name in servers_here(machine):
        if name not in running:
            prepare(machine, name, DATABASE_WAIT_S)

    def start(name: str) -> ServerProcess:
        process = launch(
            name,
            server_command(machine, name),
            environment=process_environment(machine, name),
            log=machine.logs / f"{name}.log",
            cwd=machine.home,
            port=_ports(machine).get(name),
            settings=settings_digest(machine, name),
            inherit=False,
        )
        begun.append(process)
        _write_state(machine, [*running.values(), *begun])
        return process

    servers = {n: running.get(n) or start(n) for n in servers_here(machine)}
    registering = None
    if not registration_is_current(machine):
        registering = start("registration")
    if begun:
        say("starting the servers (their logs: " + str(machine.logs) + ")")
    prepare(machine, "worker", DATABASE_WAIT_S)
    _await_answer(machine, "prefect", servers.get("prefect"))
    if refused := refusal(machine, "prefect"):
        raise ServersError(refused)
    create_pool(machine)
    since = datetime.now(UTC)
    if "worker" not in running and "prefect" in servers:
        bury_orphans(machine)
    worker = running.get("worker") or start("worker")
    _await_answer(machine, "mlflow", servers.get("mlflow"))
    _check_access(machine)
    if registering:
        _await_success(registering)
        begun.remove(registering)
        _write_state(machine, [*running.values(), *begun])
    if worker in begun:
        _await_worker(machine, worker, since)


def _refuse_taken_ports(machine: Machine, running: dict[str, ServerProcess]) -> None:
    for name in servers_here(machine):
        port = _ports(machine)[name]
        if name not in running and port_is_taken(machine.host, port):
            variable = f"KLEAR_{name.upper()}_PORT"
            raise ServersError(
                f"port {port} is in use by {port_holder(port)}; choose another one: "
                f"{variable}={_free_port_near(machine, port)} klear up"
            )


def _free_port_near(machine: Machine, port: int) -> int:
    ours = set(_ports(machine).values())
    candidates = (p for p in range(port + 1, 65_536) if p not in ours)
    return next((p for p in candidates if not port_is_taken(machine.host, p)), port)


def _ports(machine: Machine) -> dict[str, int]:
    return {"prefect": machine.prefect_port, "mlflow": machine.mlflow_port}


def _await_answer(machine: Machine, name: str, server: ServerProcess | None) -> None:
    """`server` is None for one that somebody else started: it must be there already."""
    url = health_urls(machine)[name]
    deadline = time.monotonic() + (START_TIMEOUT_S if server else 0.0)
    while not answers(url):
        if server:
            reap([server.pid])
            if not server.alive():
                raise ServersError(_ended(name, server))
        if time.monotonic() > deadline:
            where = f"see {server.log}" if server else f"KLEAR_{name.upper()}_URL names it"
            raise ServersError(f"{name} gave no answer at {url}; {where}")
        time.sleep(0.1)


def _await_worker(machine: Machine, worker: ServerProcess, since: datetime) -> None:
    """Until it has signed on: before that, a run from the web form would wait in silence."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (last_heartbeat(machine) or since) <= since:
        reap([worker.pid])
        if not worker.alive():
            raise ServersError(_ended("worker", worker))
        if time.monotonic() > deadline:
            raise ServersError(f"the worker did not sign on; see {worker.log}")
        time.sleep(0.2)


def _await_success(process: ServerProcess) -> None:
    """Wait for a child that does one thing and ends."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid and status:
            raise ServersError(_ended(process.name, process))
        if pid:
            return
        time.sleep(0.1)
    raise ServersError(f"{process.name} did not end; see {process.log}")


def _ended(name: str, process: ServerProcess) -> str:
    return f"{name} ended while starting; {process.log} says:\n{process.log_tail()}"


def _write_state(machine: Machine, processes: Iterable[ServerProcess]) -> None:
    entries = [p.model_dump(mode="json") for p in processes]
    partial = machine.state_file.with_suffix(".partial")
    partial.touch(mode=0o600)  # digests of settings with passwords are nobody else's business
    partial.write_text(json.dumps(entries, indent=2), encoding="utf-8")
    os.replace(partial, machine.state_file)


@contextmanager
def _one_at_a_time(machine: Machine) -> Iterator[None]:
    path = Path(f"{machine.state_file}.lock")
    with path.open("w") as file:  # flock: the kernel lets go when the holder dies
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
