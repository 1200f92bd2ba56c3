"""Seconds of a tiny run in which every stage is cached, against the seconds its stages took.

    python tests/bench/bench_cached_run.py [PROFILE]

Needs `klear up`. The first run computes what is missing (minutes); the best of the next ones counts
for each figure: seconds of the wall, and of the CPU beside those of importing Prefect and MLflow
alone, which no run can do without; milliseconds a stage, from the start of the first to the end of
the last as Prefect recorded them.
"""

import json
import re
import resource
import subprocess
import sys
import time
from datetime import datetime

from klear.configs.machine import load_machine
from klear.flows.cockpit.servers import post
from klear.tasks.store.lineage import ancestors, find_by_prefix
from klear.tasks.store.store import Store

KLEAR = ["-m", "klear.flows.cli.main", "run"]
IMPORTS = "import gc; gc.disable(); from prefect import flow; from mlflow import MlflowClient"
RUNS = 5


def run(*command: str) -> tuple[str, float, float]:
    """What Python printed, and its seconds from the outside and of CPU."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, wall, cpu


def ms_of_a_stage(report: str) -> float:
    """Milliseconds of this run from its first stage's start to its last one's end, a stage."""
    match = re.search(r"flow-runs/flow-run/([\w-]+)", report)
    only = {"flow_runs": {"id": {"any_": [match.group(1)]}}} if match else sys.exit("no flow run")
    tasks = post(load_machine(), "task_runs/filter", only)
    start, end = (
        [datetime.fromisoformat(task[name]) for task in tasks]
        for name in ("start_time", "end_time")
    )
    return (max(end) - min(start)).total_seconds() * 1e3 / len(tasks)


def seconds_of_stages(report: str) -> float:
    """Sum over the stages of this run of the seconds their manifests record."""
    store, match = Store(load_machine().store), re.search(r"report/(\w+)/report\.html", report)
    if not match:
        sys.exit("the run printed no report")
    page = find_by_prefix(store, "report", match.group(1))
    return sum(manifest.seconds for manifest in (page, *ancestors(store, page)))


def main() -> None:
    profile = sys.argv[1] if len(sys.argv) > 1 else "tiny"
    run(*KLEAR, profile)
    outputs, walls, cpus = zip(*(run(*KLEAR, profile) for _ in range(RUNS)), strict=True)
    for output in outputs:
        if "every stage cached" not in output:
            sys.exit("a later run computed something:\n" + output)
    ours, peer = min(walls), seconds_of_stages(outputs[0])
    line = {
        "bench": "cached_run",
        "ours": round(ours, 2),
        "peer": {"the same stages computed": round(peer, 1)},
        "unit": "s",
        "ratio": round(peer / ours, 1),
        "ms_of_a_stage": round(min(map(ms_of_a_stage, outputs)), 1),
        "cpu_s": round(min(cpus), 2),
        "cpu_s_of_imports": round(min(run("-c", IMPORTS)[2] for _ in range(RUNS)), 2),
        "setup": f"klear run {profile}, best of {RUNS}, wall seconds with interpreter start",
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
