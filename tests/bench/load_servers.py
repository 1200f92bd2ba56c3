"""Load on servers and workers: 1,024 judge requests at once, 200,000 metric points in MLflow.

    python tests/bench/load_servers.py [--part judge|mlflow …]

The MLflow server is a real one of its own (SQLite, loopback). Each part at a quarter of its size
and at its size; what is measured says `load_measured`.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from load_measured import run as run_load

from klear.configs.machine import Machine
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
from klear.flows.cockpit.servers import launch, refusal, stop
from klear.tests.processes import free_ports

METRICS_A_STEP, LINES_AT_ONCE = 20, 50
CODE = {"kind": "stdin", "cases": [{"input": f"{i}\n", "output": f"{i + 1}\n"} for i in range(4)]}


def judge(requests: int) -> dict[str, float]:
    """As many threads ask at once: half programs of four tests, half formulas for sympy."""
    latencies: list[float] = []
    wrong: list[str] = []
    with Judge() as one:
        one.check_sandbox()
        gate = threading.Event()

        def ask(number: int) -> None:
            if number % 2:
                problem = Problem.model_validate(
                    {"domain": "code", "prompt": f"p{number}", "tests": CODE}
                )
                text = f"```python\n# {number}\nprint(int(input()) + 1)\n```"
            else:
                problem = Problem(
                    domain="math", prompt=f"p{number}", answer=rf"\sqrt{{{number}}}+x"
                )
                text = rf"\boxed{{x+\sqrt{{{number}}}}}"
            gate.wait()
            began = time.monotonic()
            score = one.judge(problem, text)
            latencies.append(time.monotonic() - began)
            if score.verdict != "AC":
                wrong.append(f"{score.verdict} {score.reason}")

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(requests)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        gate.set()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        cpu, below = _cpu_and_memory(psutil.Process().children(recursive=True))  # before they end
    assert not wrong, wrong[:3]
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
    figures = {"all_s": took, "p50_s": cuts[49], "p99_s": cuts[98], "workers_mb": below / (1 << 20)}
    return {**figures, "cpu_s": cpu + time.process_time()}


def _cpu_and_memory(processes: Iterable[psutil.Process]) -> tuple[float, int]:
    """Seconds, with those of children that have ended, and bytes, of those that live."""
    seconds, held = 0.0, 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])
            held += process.memory_info().rss
    return seconds, held


def mlflow(points: int) -> dict[str, float]:
    """Curves through the tracker, as a stage writes them; then the run opened again (a resume)."""
    from klear.configs.settings.base import Settings
    from klear.tasks.engine.events import Progress, Started, Task
    from klear.tasks.observe.tracker import Tracker
    from klear.training.launch.result_files import METRICS

    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (uri, server):
        tracker = Tracker(uri, "load")
        parent = tracker.start_pipeline("load", {})
        work, task = Path(folder), Task("rl", 1, "k", (), Settings())
        curve = work / METRICS
        curve.parent.mkdir()
        tracker.on(Started(task, "", work))
        assert tracker.flush(600)
        lines = [
            {"step": s, "time": 1e9 + s, "metrics": {f"m{i}": s / 7 for i in range(METRICS_A_STEP)}}
            for s in range(points // METRICS_A_STEP)
        ]
        began = time.monotonic()
        waits = []
        for start in range(0, len(lines), LINES_AT_ONCE):
            with curve.open("a") as file:
                file.writelines(json.dumps(x) + "\n" for x in lines[start : start + LINES_AT_ONCE])
            put = time.monotonic()
            tracker.on(Progress("rl", start, len(lines), ""))
            waits.append(time.monotonic() - put)
        seconds = time.monotonic() - began
        tracker.on(Started(task, "", work))  # whatever is left
        assert tracker.flush(3600)
        arrived = time.monotonic() - began
        again = Tracker(uri, "load")
        again.start_pipeline("load", {}, parent)
        began = time.monotonic()
        again.on(Started(task, "", work))
        assert again.flush(600)
        reopened = time.monotonic() - began
        _, memory = _cpu_and_memory([server, *server.children(recursive=True)])
    return {"told_s": seconds, "longest_wait_s": max(waits, default=0.0), "arrived_s": arrived,
            "reopened_s": reopened, "server_mb": memory / (1 << 20)}  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A MLflow server on a free port; it ends with the block."""
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    log = folder / "server.log"
    server = launch(
        [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1",
         "--port", str(port), "--backend-store-uri", f"sqlite:///{folder}/m.db",
         "--artifacts-destination", str(folder / "artifacts")],
        {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        folder,
        log,
    )  # fmt: skip
    try:
        while refusal(Machine(home=folder, mlflow_url=uri), "mlflow"):
            assert server.is_running(), log
            time.sleep(0.3)
        yield uri, server
    finally:
        stop(server.pid)


if __name__ == "__main__":
    run_load("servers", {"judge": (judge, 1_024), "mlflow": (mlflow, 200_000)})
