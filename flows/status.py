"""`klear status`: which servers run, the latest runs, and what the store holds."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from configs.machine import Machine
from configs.stage_names import STAGES
from flows.database import database_trouble
from flows.prefect_api import ServerError, answers, post
from flows.quantities import size
from flows.servers import alive, health_urls, servers_here

LATEST_RUNS = 5


class StageResults(NamedTuple):
    """Published results of one stage."""

    stage: str
    results: int
    bytes: int
    latest: datetime


def print_status(machine: Machine) -> None:
    print(f"home     {machine.home}")
    for line in (*server_lines(machine), "", *run_lines(machine), "", *store_lines(machine.store)):
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
        wrong = next(
            filter(None, (database_trouble(machine, n) for n in servers_here(machine))), ""
        )
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
        began = _local(datetime.fromisoformat(run["start_time"])) if run["start_time"] else "-"
        yield f"  {began:16}  {run['state_name'] or '-':10} {run['name']}"


def store_lines(store: Path) -> Iterator[str]:
    """One line per stage with published results, in the order of a run."""
    stages = stage_results(store)
    yield f"store {store}:" if stages else f"store {store}: empty"
    for s in stages:
        count = f"{s.results} result{'s' if s.results > 1 else ''}"
        yield f"  {s.stage:18} {count:11} {size(s.bytes):>9}   latest {_local(s.latest)}"


def stage_results(store: Path) -> list[StageResults]:
    manifests: dict[str, list[Path]] = {}
    for path in store.glob("*/*/manifest.json"):
        if not path.parts[-3].startswith("."):
            manifests.setdefault(path.parts[-3], []).append(path)
    order = {name: place for place, name in enumerate(STAGES)}
    return [
        StageResults(
            stage=stage,
            results=len(paths),
            bytes=sum(f.stat().st_size for p in paths for f in p.parent.rglob("*") if f.is_file()),
            latest=datetime.fromtimestamp(max(p.stat().st_mtime for p in paths)).astimezone(),
        )
        for stage, paths in sorted(manifests.items(), key=lambda i: order.get(i[0], len(order)))
    ]


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")
