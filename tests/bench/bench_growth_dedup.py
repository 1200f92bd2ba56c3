"""How exact and near-duplicate removal grow from 25,000 to 400,000 documents, one core.

    python tests/bench/bench_growth_dedup.py [--sizes N N N]

Parquet in, verdicts out, each size in a process of its own. Prints CPU seconds, the peak of the
memory that the process itself holds, the index in it (digests, lengths, verdicts and one band of
keys), the log-log slope of time over size and, from the largest size, an estimate for 1.5 million.
Sizes beyond the real documents are filled up with variants of them (see real_documents.py).
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

SIZES = 25_000, 100_000, 400_000
SAMPLES = 1_500_000
INDEX_BYTES = {"exact": 80, "near": 112}
"""A document: two digests, table, match, rows and what is kept; near: length, place, group, key."""
REPEATS = 3


def measure(table: Path, near: bool) -> dict[str, float]:
    """CPU seconds and memory of one run; everything that is loaded once is loaded before."""
    import pyarrow as pa
    from real_documents import write_problems

    from configs.data_stages import DedupSettings
    from tasks.dedup import KEPT, find_duplicates

    pa.set_cpu_count(1)
    settings = DedupSettings(near=near)
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.parquet"
        write_problems(small, [f"a b c d {i % 7}" for i in range(100)])
        find_duplicates(small, Path(folder) / "small", settings)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = _status("VmRSS")
        seconds = math.inf
        for number in range(REPEATS):
            began = time.process_time()
            verdicts = find_duplicates(table, Path(folder) / str(number), settings)
            seconds = min(seconds, time.process_time() - began)
    peak = max(_status("VmHWM") - before, 0.0)
    return {"seconds": seconds, "mb": peak, "dropped": float((verdicts.kind != KEPT).sum())}


def _status(name: str) -> float:
    """A line of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + ":")) / 1024


def slope(sizes: list[int], values: list[float]) -> float:
    """Least-squares slope of log value over log size."""
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return above / sum((a - middle) ** 2 for a in x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        table, kind = arguments.measure
        print(json.dumps(measure(Path(table), kind == "near")))
        return
    from real_documents import documents, write_problems

    sizes = sorted(arguments.sizes)
    texts, kind = documents(sizes[-1])
    random.Random(1).shuffle(texts)  # every size is the same mixture
    found: dict[str, list[dict[str, float]]] = {"exact": [], "near": []}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            table = Path(folder) / f"{size}.parquet"
            write_problems(table, texts[:size])
            for name, results in found.items():
                command = [sys.executable, __file__, "--measure", str(table), name]
                threads = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
                done = subprocess.run(
                    command, env={**os.environ, **threads}, capture_output=True, check=True
                )
                results.append(json.loads(done.stdout.splitlines()[-1]))
                one, index = results[-1], INDEX_BYTES[name] * size / 2**20
                print(
                    f"{name:5} {size:7}: {one['seconds']:6.2f} CPU s, peak {one['mb']:6.1f} MB "
                    f"of which index {index:5.1f} MB, dropped {one['dropped']:.0f}",
                    flush=True,
                )
    slopes = {n: slope(sizes, [r["seconds"] for r in rs]) for n, rs in found.items()}
    estimate = {n: SAMPLES / sizes[-1] * rs[-1]["seconds"] for n, rs in found.items()}
    print(f"slopes: {slopes}; estimate for {SAMPLES}: {estimate} CPU s")
    result = {
        "bench": "growth_dedup",
        "ours": 1 / max(slopes.values()),
        "peer": {"linear": 1.0},
        "unit": "1 / log-log slope",
        "ratio": 1 / max(slopes.values()),
        "setup": f"{sizes} documents ({kind}), one core, CPU s; slope exact {slopes['exact']:.3f}, "
        f"near {slopes['near']:.3f}; 1.5M samples: exact {estimate['exact']:.0f} CPU s, near "
        f"{estimate['near']:.0f} CPU s",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
