"""How the decontaminate stage grows: CPU seconds and peak memory at 25k, 100k and 400k documents.

    python tests/bench/bench_growth_decontaminate.py [--sizes 25000 100000 400000]

The documents are those of ../shared/data in random order, and beyond them the same again, each
made distinct by a word in its middle, so that the share of leaks stays what it is; against AIME24,
AIME25, HMMT Feb 25, MATH-500 and LiveCodeBench v5; alnum, n = 9. Each size is one process that
runs the whole stage: search, hits, page, kept and rejected tables. The
slope is that of log CPU seconds over log documents; 1 is linear.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from bench_decontaminate import benchmarks  # noqa: E402
from real_documents import documents, write_problems  # noqa: E402

from configs.data_stages import DecontaminateSettings  # noqa: E402
from eval.records import Problem  # noqa: E402
from eval.tables import write_table  # noqa: E402
from tasks.store import Artifact  # noqa: E402

SIZES = (25_000, 100_000, 400_000)
PAPER_SAMPLES = 1_500_000
REAL = 100_000
TABLE = "kept.parquet"


def run_stage(problems: Path, against: Path, out: Path) -> None:
    """In a process of its own: the stage, then one JSON line about it."""
    from tasks.decontaminate import decontaminate
    from tasks.decontaminate_part import benchmark_index

    items, data = (Artifact(stage="b", key="k", digest="d", folder=f) for f in (against, problems))
    settings = DecontaminateSettings()
    index = benchmark_index(items.file(TABLE), items.digest, settings.n, settings.normalize)
    index.overlaps("warm")
    with_index = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    metrics = decontaminate.body(out, data, items, settings=settings)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu": seconds, "index_mb": with_index, "peak_mb": peak, **metrics}))


def write_benchmarks(folder: Path) -> None:
    folder.mkdir()
    found = benchmarks().items()
    rows = (
        Problem(id=f"{name}-{i}", domain="math", prompt=text, answer="0", source=name)
        for name, texts in found
        for i, text in enumerate(texts)
    )
    write_table(folder / TABLE, Problem, rows)


def measure(size: int, texts: list[str], place: Path) -> dict[str, float]:
    problems, out = place / f"problems-{size}", place / f"out-{size}"
    problems.mkdir()
    out.mkdir()
    write_problems(problems / TABLE, texts[:size])
    stored = sum(len(text.encode()) for text in texts[:size]) / 1e6
    command = [sys.executable, __file__, "--child", problems, place / "benchmarks", out]
    printed = subprocess.check_output([str(part) for part in command], text=True)
    figures = json.loads(printed.splitlines()[-1])
    assert pq.read_metadata(out / TABLE).num_rows == figures["kept"]
    print(
        f"{size:>8,} documents, {stored:,.0f} MB: {figures['cpu']:.2f} CPU s, "
        f"{figures['rows_any_ngram']:,.0f} share an n-gram, peak {figures['peak_mb']:,.0f} MB "
        f"({figures['index_mb']:,.0f} MB before the first row)",
        flush=True,
    )
    return figures


def repeated(count: int) -> tuple[list[str], str]:
    """`count` distinct documents: the real ones, then the same with one word put in the middle."""
    real, kind = documents(min(count, REAL))
    texts = list(real)
    while len(texts) < count:
        copy, place = divmod(len(texts), len(real))
        words = real[place].split(" ")
        middle = len(words) // 2
        texts.append(" ".join([*words[:middle], f"copy{copy}", *words[middle:]]))
    return texts, f"{len(real)} {kind} documents, then copies with one word more"


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Least-squares slope of log seconds over log documents."""
    x, y = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--child", type=Path, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_stage(*args.child)
        return
    texts, kind = repeated(max(args.sizes))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_benchmarks(place / "benchmarks")
        figures = [measure(size, texts, place) for size in args.sizes]
    seconds = [f["cpu"] for f in figures]
    steepness = slope(args.sizes, seconds)
    last = figures[-1]
    paper = last["cpu"] * PAPER_SAMPLES / args.sizes[-1]
    print(f"slope {steepness:.3f}; {PAPER_SAMPLES:,} documents: about {paper:,.0f} CPU s")
    result = {
        "bench": "growth_decontaminate",
        "ours": args.sizes[-1] / last["cpu"],
        "peer": {f"{n} documents": n / s for n, s in zip(args.sizes, seconds, strict=True)},
        "unit": "documents/s of the whole stage",
        "ratio": 1 / steepness,
        "setup": f"{kind}; alnum, n=9; log-log slope {steepness:.3f}; peak MB "
        f"{', '.join(str(round(f['peak_mb'])) for f in figures)}; estimate for {PAPER_SAMPLES} "
        f"documents {paper:.0f} CPU s",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
