"""`klear status`, `klear store` and `klear lineage`: what runs, what is there, where it is from."""

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import yaml
from cyclopts import App, Parameter
from cyclopts.validators import Number

from ...configs.machine import load_machine
from ...configs.settings.explain import nearest
from ...configs.settings.pipeline import STAGES
from ...tasks.report.figures import number
from ...tasks.report.run_story import duration, size
from ...tasks.store.gc import damaged, find_garbage, remove
from ...tasks.store.lineage import (
    AVERAGE,
    EVALUATION,
    ancestors,
    find_by_prefix,
    find_named,
    results,
    scores_of,
)
from ...tasks.store.shared import SharedStore, open_store
from ...tasks.store.store import Manifest, Store
from ..cockpit.servers import ServersError, alive, post, refusal

store = App(name="store")


def when(moment: float) -> str:
    """A Unix time on this machine's clock: `2026-08-01 12:30`."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def status() -> None:
    """Servers, latest runs and finished stages."""
    machine = load_machine()
    print(f"home     {machine.home}")
    running = alive(machine)
    for name, url in (("prefect", machine.prefect_url), ("mlflow", machine.mlflow_url)):
        ours = f"pid {running[name].pid}" if name in running else "not started by `klear up` here"
        wrong = refusal(machine, name)
        print(f"✗ {name:8} {wrong}" if wrong else f"✓ {name:8} {url} ({ours})")
    worker = running.get("worker")
    print(f"✓ worker   pid {worker.pid}\n" if worker else "✗ worker   down\n")
    try:
        runs = post(machine, "flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 5})
        print("latest runs:" if runs else "no runs yet")
    except ServersError:
        runs = []
        print("latest runs: unknown while Prefect is down")
    for run in runs:
        began = run["start_time"] and when(datetime.fromisoformat(run["start_time"]).timestamp())
        print(f"  {began or '-':16}  {run['state_name'] or '-':10} {run['name']}")
    print("", *store_lines(Store(machine.store)), sep="\n")


def store_lines(here: Store) -> Iterator[str]:
    """Results and bytes of every stage on this machine, in the order of a run, and of all."""
    everything = results(here)
    stages: dict[str, list[Manifest]] = {name: [] for name in STAGES}
    for result in everything:
        stages.setdefault(result.stage, []).append(result)
    for stage, some in {**stages, "all": everything}.items():
        if some:
            total, latest = size(sum(r.bytes for r in some)), when(some[-1].made)
            yield f"{stage:18} {len(some):5}  {total:>9}   latest {latest}"
    yield f"in {here.root}" if everything else f"no results in {here.root}"


@store.command
def ls() -> None:
    """Every result, the oldest first."""
    here = open_store(load_machine())
    manifests = results(here)
    for r in manifests:
        figures = f"{size(r.bytes):>9}  {duration(r.seconds):>12}"
        print(f"{when(r.made)}  {f'{r.stage}/{r.key}':36} {figures}")
    if not manifests:
        print(f"no results in {here.root}", file=sys.stderr)


@store.command
def show(name: str, /) -> int:
    """What made a result, and why it was computed.

    Args:
        name: stage/key; the key may be cut.
    """
    here = open_store(load_machine())
    stage, _, digits = name.partition("/")
    result = find_by_prefix(here, stage, digits)
    facts = result.model_dump(mode="json", exclude={"files", "format"})
    print(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True), end="")
    return 0


@store.command
def verify() -> int:
    """Read every file and compare its digest. Exit code 1 when something is damaged."""
    here = open_store(load_machine())
    again = "the next run here that makes it computes it again"
    checked = [(wrong, again) for _, wrong in damaged(here)]
    if isinstance(here, SharedStore):
        remedy = "`klear run --verify` sends the copy of its machine again, or computes it again"
        checked += [(wrong, remedy) for _, wrong in here.shared_damage()]
    bad = [f"damaged: {wrong}; {remedy}" for wrong, remedy in checked if wrong]
    print("\n".join([*bad, f"{len(checked)} results read, {len(bad)} damaged"]))
    return 1 if bad else 0


@store.command
def gc(
    *, days: Annotated[float, Parameter(validator=Number(gte=0))] = 7.0, yes: bool = False
) -> None:
    """List what no report needs.

    Args:
        days: Keep what is younger.
        yes: Remove, instead of listing only.
    """
    here = Store(load_machine().store)
    folders, why = find_garbage(here, days)
    if why:
        print(why)
    freed = 0
    for rubbish in folders:
        gone = yes and remove(here, rubbish)
        freed += rubbish.bytes if gone or not yes else 0
        state = "removed" if gone else "in use, kept" if yes else "would go"
        print(f"{state:12} {rubbish.name:44} {size(rubbish.bytes):>9}  {rubbish.why}")
    verb = "freed" if yes else "would be freed; --yes removes"
    print(f"{len(folders)} folders, {size(freed)} {verb}")


def lineage(name: str, /, *, html: Path | None = None) -> int:
    """The chain behind a score, a checkpoint or any result, oldest first.

    Args:
        name: rl_code/aime24, sft, stage/key.
        html: A file for the same as a picture.
    """
    machine = load_machine()
    here = open_store(machine)
    meant = find_named(here, name)
    if meant is None:
        everything = results(here)
        forms = "rl_code/aime24, a stage, or stage/key"
        scored = (r for r in everything if r.stage.startswith(EVALUATION))
        scores = {f"{r.stage}/{n}"[len(EVALUATION) :] for r in scored for n in r.metrics}
        names = {s.removesuffix(f"/{AVERAGE}") for s in scores} | {r.stage for r in everything}
        close = nearest(name, sorted(names))
        print(f"the store has no result {name}{close} ({forms}); `klear store ls` lists results")
        return 1
    from ...tasks.report.page import render_text

    named, metric = meant
    if html:
        from ...tasks.report.lineage_page import lineage_page

        page = lineage_page(here, named, lambda run: f"{machine.mlflow_url}/#/runs/{run}")
        html.write_text(page, encoding="utf-8")
        print(html)
        return 0
    chain, folder = [*ancestors(here, named), named], here.folder(named.stage, named.key)
    benchmark, _, figure = metric.rpartition("/")
    value = number(figure, named.metrics[metric]) if metric else ""
    facts = {"chain": chain, "folder": folder, "scores": scores_of(here, named)}
    facts |= {"benchmark": benchmark, "figure": figure}
    print(render_text("terminal/lineage.txt", **facts, value=value, mlflow=machine.mlflow_url))
    return 0
