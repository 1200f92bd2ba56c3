"""`klear up`, `down`, `serve`, `status` and `doctor`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from configs.machine import Machine, load_machine
from flows.cli.store import by_stage, when
from flows.servers import servers
from flows.servers.commands import database_trouble
from flows.servers.doctor import doctor
from flows.servers.prefect_api import ServersError, answers, post
from tasks.report.run_story import size
from tasks.store.care import published
from tasks.store.store import Store

LATEST_RUNS = 5


def up() -> None:
    """Start Prefect, MLflow and a worker on this machine, with the web forms."""
    servers.up(load_machine())


def down() -> None:
    """End what `klear up` started."""
    servers.down(load_machine())


def serve(name: Literal["prefect", "mlflow", "worker"], /) -> int:
    """One of them in the foreground. TERM and INT end it with everything it started: exit code 0,
    else that of what it ran."""
    return servers.serve(load_machine(), name)


def check() -> int:
    """What would make a run fail: versions, sandbox, ports, disk, memory, GPU, store, cluster."""
    return doctor(load_machine())


def status() -> None:
    """Servers, latest runs and finished stages."""
    machine = load_machine()
    print(f"home     {machine.home}")
    store = store_lines(Store(machine.store))
    for line in (*server_lines(machine), "", *run_lines(machine), "", *store):
        print(line)


def server_lines(machine: Machine) -> Iterator[str]:
    """One line per server: up with its address, or down."""
    running, urls = (
        servers.alive(machine),
        {"prefect": machine.prefect_url, "mlflow": machine.mlflow_uri},
    )
    here = servers.servers_here(machine)
    for name, health in servers.health_urls(machine).items():
        pid = f"pid {running[name].pid}" if name in running else ""
        if not answers(health):
            yield f"✗ {name:8} down{f' ({pid} runs but gives no answer)' * bool(pid)}"
        else:
            ours = "not started by `klear up`" if name in here else "elsewhere"
            yield f"✓ {name:8} {urls[name]} ({pid or ours})"
    worker = running.get("worker")
    yield f"✓ worker   pid {worker.pid}" if worker else "✗ worker   down"
    if machine.password.get_secret_value():
        yield f"✓ access   {machine.host}, password of {machine.user}"
    if machine.postgres:
        wrong = next(filter(None, (database_trouble(machine, name) for name in here)), "")
        yield f"{'✗' if wrong else '✓'} database Postgres at {machine.postgres}  {wrong}".rstrip()


def run_lines(machine: Machine) -> Iterator[str]:
    """The latest flow runs, newest first, from the Prefect API."""
    try:
        runs = post(machine, "flow_runs/filter", {"sort": "START_TIME_DESC", "limit": LATEST_RUNS})
    except ServersError:
        yield "latest runs: unknown while Prefect is down"
        return
    yield "latest runs:" if runs else "no runs yet"
    for run in runs:
        began = run["start_time"] and when(datetime.fromisoformat(run["start_time"]).timestamp())
        yield f"  {began or '-':16}  {run['state_name'] or '-':10} {run['name']}"


def store_lines(store: Store) -> Iterator[str]:
    """One line per stage with published results, in the order of a run."""
    stages = by_stage(published(store))
    yield f"store {store.root}:" if stages else f"store {store.root}: empty"
    for stage, found in stages.items():
        count = f"{len(found)} result{'s' if len(found) > 1 else ''}"
        total, latest = size(sum(r.bytes for r in found)), when(found[-1].made)
        yield f"  {stage:18} {count:11} {total:>9}   latest {latest}"
