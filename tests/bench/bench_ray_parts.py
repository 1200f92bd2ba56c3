"""What a part costs beyond its own work on a Ray cluster: our tasks, and prefect-ray's.

    pip install --target /tmp/prefect-ray --no-deps prefect-ray==0.6.0
    PYTHONPATH=/tmp/prefect-ray python tests/bench/bench_ray_parts.py [--parts 64]

prefect-ray is in no lock, for nothing of klear uses it: install it apart, without its needs, which
are there. Without it the line has our figures alone. One cluster of one node and two CPUs on this
machine serves both. A part of nothing shows the overhead, one of 20 ms how much of it hides behind
work; both write one small file into a folder of their own, as parts do. The first call of each
side starts its workers and is not counted; wall milliseconds a part, the least of `--rounds`.
"""

import argparse
import importlib.util
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
PATHS = (str(ROOT), str(HERE), os.environ.get("PYTHONPATH"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, PATHS))
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
CPUS = 2
INSTALL = "pip install --target /tmp/prefect-ray --no-deps prefect-ray==0.6.0"


def sleep_and_write(milliseconds: float, part: int, folder: Path) -> None:
    time.sleep(milliseconds / 1000)
    (folder / "done").write_text(str(part))


def ours(address: str, scratch: Path, parts: int, work: float) -> None:
    from bench_ray_parts import sleep_and_write  # by a name that nodes know

    from tasks.ray_parts import RayParts

    every = RayParts(address, scratch, range(parts), partial(sleep_and_write, work), 0)
    assert len(list(every.folders())) == parts


def prefect_ray(address: str, scratch: Path, parts: int, work: float) -> None:
    from bench_ray_parts import sleep_and_write
    from prefect import flow, task
    from prefect_ray import RayTaskRunner  # type: ignore[import-not-found]

    @task
    def one(part: int) -> None:
        folder = scratch / f"{part:05d}"
        folder.mkdir()
        sleep_and_write(work, part, folder)

    @flow(task_runner=RayTaskRunner(address=address))
    def every() -> None:
        for future in one.map(list(range(parts))):
            future.result()

    every()
    assert len(list(scratch.iterdir())) == parts


def measure(
    side: Callable[[str, Path, int, float], None], address: str, parts: int, rounds: int
) -> dict[str, float]:
    """Wall milliseconds a part, by the milliseconds of its own work."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        side(address, _empty(folder, "warm"), CPUS, 0.0)
        for work in (0.0, 20.0):
            times = []
            for number in range(rounds):
                scratch = _empty(folder, f"{work}-{number}")
                began = time.perf_counter()
                side(address, scratch, parts, work)
                times.append(time.perf_counter() - began)
            found[f"{work:g} ms"] = round(min(times) / parts * 1000, 1)
    return found


def _empty(folder: str, name: str) -> Path:
    made = Path(folder) / name
    made.mkdir()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    import ray

    ray.init(
        num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    address = ray.get_runtime_context().gcs_address
    mine = measure(ours, address, asked.parts, asked.rounds)
    peer: dict[str, float] = {}
    if importlib.util.find_spec("prefect_ray") is None:
        print(f"no prefect-ray here: {INSTALL}, then PYTHONPATH=/tmp/prefect-ray", file=sys.stderr)
    else:
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness():
            peer = measure(prefect_ray, address, asked.parts, asked.rounds)
    line = {
        "bench": "ray_parts",
        "ours": mine,
        "peer": {"prefect-ray": peer} if peer else {},
        "unit": "wall ms a part, by the work in it",
        "ratio": round(peer["0 ms"] / mine["0 ms"], 2) if peer else None,
        "setup": f"{asked.parts} parts, one node of {CPUS} CPUs, best of {asked.rounds}",
    }
    print(json.dumps(line))
    ray.shutdown()


if __name__ == "__main__":
    main()
