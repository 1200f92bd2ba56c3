"""`klear status`: which servers run, the latest runs, and what the store holds."""

from collections.abc import Iterator
from datetime import datetime

from configs.machine import Machine, load_machine
from flows.cli.quantities import size, when
from flows.cli.store import by_stage
from flows.servers.commands import database_trouble
from flows.servers.prefect_api import ServerError, answers, post
from flows.servers.servers import alive, health_urls, servers_here
from tasks.store.care import published
from tasks.store.store import Store

LATEST_RUNS = 5


def status() -> None:
    """Servers, latest runs and finished stages."""
    machine = load_machine()
    print(f"home     {machine.home}")
    store = store_lines(Store(machine.store))
    for line in (*server_lines(machine), "", *run_lines(machine), "", *store):
        print(line)


def server_lines(machine: Machine) -> Iterator[str]:
    """One line per server: up with its address, or down."""
    running, urls = alive(machine), {"prefect": machine.prefect_url, "mlflow": machine.mlflow_uri}
    for name, health in health_urls(machine).items():
        if not answers(health):
            hung = f" (pid {running[name].pid} runs but gives no answer)" if name in running else ""
            yield f"✗ {name:8} down{hung}"
        else:
            ours = "not started by `klear up`" if name in servers_here(machine) else "elsewhere"
            whose = f"pid {running[name].pid}" if name in running else ours
            yield f"✓ {name:8} {urls[name]} ({whose})"
    worker = running.get("worker")
    yield f"✓ worker   pid {worker.pid}" if worker else "✗ worker   down"
    if machine.password.get_secret_value():
        yield f"✓ access   {machine.host}, password of {machine.user}"
    if machine.postgres:
        troubles = [database_trouble(machine, name) for name in servers_here(machine)]
        wrong = next(filter(None, troubles), "")
        yield f"{'✗' if wrong else '✓'} database Postgres at {machine.postgres}  {wrong}".rstrip()


def run_lines(machine: Machine) -> Iterator[str]:
    """The latest flow runs, newest first, from the Prefect API."""
    try:
        runs = post(machine, "flow_runs/filter", {"sort": "START_TIME_DESC", "limit": LATEST_RUNS})
    except ServerError:
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
