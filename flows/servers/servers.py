"""`klear up`, `klear down` and `klear serve`: a Prefect server, an MLflow server and a worker.

Everything they own lies below the home folder (databases unless they are in Postgres, results,
logs); `servers.json` there says which processes `klear up` started. It starts what is missing and
leaves nothing of a failed start behind. A server whose address is set (KLEAR_PREFECT_URL,
KLEAR_MLFLOW_URL) is somebody else's to start.

supervisord is not used: it hands its own environment, passwords of a former `up` included, to all
that it starts, and waits for none of it to answer.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter

from configs.machine import Machine
from flows.servers.commands import (
    prepare,
    process_environment,
    registration_is_current,
    server_command,
    settings_digest,
)
from flows.servers.prefect_api import (
    ServersError,
    answers,
    crash_orphans,
    create_pool,
    last_heartbeat,
    refusal,
)
from flows.servers.process import ServerProcess, launch, port_holder, stop

START_TIMEOUT_S = 300.0
DATABASE_WAIT_S = 60.0
ANSWER_WITHIN_S = 30.0  # a busy machine is slow; a server that is gone refuses at once
_STATE = TypeAdapter(list[ServerProcess])


def read_state(machine: Machine) -> list[ServerProcess]:
    """The processes the last `up` recorded, alive or not."""
    if not machine.state_file.exists():
        return []
    try:
        return _STATE.validate_json(machine.state_file.read_bytes())
    except ValueError as error:
        raise ServersError(
            f"{machine.state_file} is damaged, or of an older klear, whose `klear down` ends "
            f"them ({error}); else end the servers by hand and delete it"
        ) from error


def _write_state(machine: Machine, processes: Iterable[ServerProcess]) -> None:
    partial = machine.state_file.with_suffix(".partial")
    partial.touch(mode=0o600)  # digests of settings with passwords are nobody else's business
    partial.write_bytes(_STATE.dump_json(list(processes), indent=2))
    partial.replace(machine.state_file)


def alive(machine: Machine) -> dict[str, ServerProcess]:
    """The recorded processes that are running, by name."""
    return {p.name: p for p in read_state(machine) if p.alive()}


def servers_here(machine: Machine) -> dict[str, int]:
    """Those that `klear up` starts, and their ports."""
    here = {"prefect": machine.prefect_port} if machine.prefect_is_here else {}
    return here | ({"mlflow": machine.mlflow_port} if machine.mlflow_is_here else {})


def health_urls(machine: Machine) -> dict[str, str]:
    return {
        "prefect": f"{machine.prefect_api_url}/health",
        "mlflow": f"{machine.mlflow_uri}/health",
    }


def are_up(machine: Machine) -> bool:
    """Whether both servers answer, and are ours (another project's may sit on the same ports).

    Raises ServersError about a server that is not `klear up`'s to start, and about a password.
    """
    running, here = alive(machine), servers_here(machine)
    for name, url in health_urls(machine).items():
        if name in here and (name not in running or not answers(url, ANSWER_WITHIN_S)):
            return False
    check_access(machine)
    return True


def check_access(machine: Machine) -> None:
    """Raises ServersError where a server does not answer, or does not let us in."""
    if refused := "\n".join(filter(None, (_refused(machine, n) for n in health_urls(machine)))):
        raise ServersError(refused)


def _refused(machine: Machine, name: str) -> str:
    """Why a server is of no use: it runs elsewhere and is not there, or does not let us in."""
    url = health_urls(machine)[name]
    if name not in servers_here(machine) and not answers(url, ANSWER_WITHIN_S):
        return f"{name} does not answer at {url} (KLEAR_{name.upper()}_URL)"
    return refusal(machine, name)


def up(machine: Machine, say: Callable[[str], None] = print) -> None:
    """Start what is missing; raises ServersError after ending all that this call started."""
    machine.make_home()
    with _one_at_a_time(machine):
        running = alive(machine)
        outdated = [n for n, p in running.items() if p.settings != settings_digest(machine, n)]
        if outdated:
            names = ", ".join(outdated)
            raise ServersError(f"settings have changed since {names} started: first `klear down`")
        stop([p for p in read_state(machine) if p.name not in running])  # what they left behind
        begun: dict[str, ServerProcess] = {}
        since = time.monotonic()
        try:
            _start_missing(machine, running, begun, say)
        except BaseException:
            stop(list(begun.values()))
            _write_state(machine, running.values())
            raise
        took = f"started {', '.join(begun)} in {time.monotonic() - since:.0f} s"
        say(took if begun else "already up")
        say(f"Prefect  {machine.prefect_url}\nMLflow   {machine.mlflow_uri}")


def _start_missing(
    machine: Machine,
    running: dict[str, ServerProcess],
    begun: dict[str, ServerProcess],
    say: Callable[[str], None],
) -> None:
    """Both servers start at once, the worker and the registration of the forms behind Prefect."""
    missing = {n: port for n, port in servers_here(machine).items() if n not in running}
    for name, port in missing.items():
        if holder := port_holder(machine.host, port):
            fix = f"set KLEAR_{name.upper()}_PORT to a free one"
            raise ServersError(f"port {port} is in use by {holder}; {fix}")

    def start(name: str) -> ServerProcess:
        prepare(machine, name, DATABASE_WAIT_S)
        begun[name] = launch(
            name,
            server_command(machine, name),
            environment=process_environment(machine, name),
            log=machine.logs / f"{name}.log",
            cwd=machine.home,
            settings=settings_digest(machine, name),
        )
        _write_state(machine, [*running.values(), *begun.values()])
        return begun[name]

    for name in missing:
        start(name)
    if begun:
        say(f"starting the servers (their logs: {machine.logs})")
    _await_server(machine, "prefect", begun)
    create_pool(machine)
    since = datetime.now(UTC)
    worker = None
    if "worker" not in running:
        if "prefect" in servers_here(machine):
            crash_orphans(machine)
        worker = start("worker")
    if not registration_is_current(machine):
        registering = start("registration")
        _await(lambda: registration_is_current(machine), registering)
        stop([begun.pop("registration")])
        _write_state(machine, [*running.values(), *begun.values()])
    _await_server(machine, "mlflow", begun)
    if worker:  # until it has signed on a run from the web form would wait in silence
        _await(lambda: (last_heartbeat(machine) or since) > since, worker)


def _await_server(machine: Machine, name: str, begun: dict[str, ServerProcess]) -> None:
    if name in begun:
        _await(lambda: answers(health_urls(machine)[name]), begun[name])
    if refused := _refused(machine, name):
        raise ServersError(refused)


def _await(is_ready: Callable[[], bool], process: ServerProcess) -> None:
    """Wait for a process that was just started; raises ServersError if it ends before."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if not process.alive() and not is_ready():
            said = f"{process.log} says:\n{process.log_tail()}"
            raise ServersError(f"{process.name} ended while starting; {said}")
        if time.monotonic() > deadline:
            raise ServersError(f"{process.name} gave no answer; see {process.log}")
        time.sleep(0.1)


def down(machine: Machine, say: Callable[[str], None] = print) -> None:
    """End the recorded processes and nothing else; safe to repeat."""
    if not machine.home.exists():
        say("nothing is running")
        return
    with _one_at_a_time(machine):
        recorded = read_state(machine)
        running = [p for p in recorded if p.alive()]
        stop([p for p in recorded if p.name == "worker"])  # it needs the server to sign off
        if any(p.name == "prefect" for p in running):  # else its runs may be other machines'
            try:
                for name in crash_orphans(machine):
                    say(f"ended the run {name}; a retry continues from there")
            except ServersError as error:
                say(f"unfinished runs stay marked as running until the next `klear up` ({error})")
        stop([p for p in recorded if p.name != "worker"])
        _write_state(machine, [])
        for process in running:
            say(f"ended {process.name} (pid {process.pid})")
        if not running:
            say("nothing is running")


@contextmanager
def _one_at_a_time(machine: Machine) -> Iterator[None]:
    path = Path(f"{machine.state_file}.lock")
    with path.open("w") as file:  # flock: the kernel lets go when the holder dies
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Terminated(BaseException):
    """TERM or INT arrived."""


def _terminate(_: int, __: FrameType | None) -> None:
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)  # once is enough: what follows takes its time
    raise _Terminated


def serve(machine: Machine, name: str) -> int:
    """A server or the worker in the foreground, for containers and systemd. TERM and INT end it
    with everything it started. Returns 0 then, else the exit code of what it ran."""
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _terminate)
    try:
        prepare(machine, name, DATABASE_WAIT_S)
        if name == "worker":
            url, deadline = health_urls(machine)["prefect"], time.monotonic() + START_TIMEOUT_S
            while not answers(url) and time.monotonic() < deadline:
                time.sleep(0.5)
            if refused := refusal(machine, "prefect"):
                raise ServersError(refused)
            create_pool(machine)
            if not registration_is_current(machine) and _foreground(machine, "registration"):
                raise ServersError("the forms could not be registered; the lines above say why")
        return _foreground(machine, name)
    except _Terminated:
        return 0


def _foreground(machine: Machine, name: str) -> int:
    """Run it to its end; whatever interrupts us ends all of it."""
    # In a session of its own Ctrl-C reaches us alone, and we end it in order.
    environment = process_environment(machine, name)
    process = launch(name, server_command(machine, name), environment=environment, cwd=machine.home)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    finally:
        stop([process])
    print(f"{name} ended with exit code {code}", file=sys.stderr, flush=True)
    return code if code >= 0 else os.EX_SOFTWARE
