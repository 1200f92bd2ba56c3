"""The problems of a `klear eval`: from files, or from the hub, which is asked once a machine.

A hub benchmark is a result in the store like any other: the next model is scored without a
download (LiveCodeBench is gigabytes), and without a network.
"""

from collections.abc import Iterator
from pathlib import Path

from configs.machine import load_machine
from configs.sources import CollectSettings, Source
from eval.records import Problem
from eval.tables import read_table, write_table
from flows.eval_request import EvalRequest
from tasks.benchmark_files import problems_of_file, source_of_files
from tasks.collect import collect
from tasks.display import Display
from tasks.run import Run, active
from tasks.shared_store import open_store
from tasks.store import SCRATCH

PROBLEMS = "benchmark_problems.parquet"
KEPT = "kept.parquet"
from_hub = collect.named("benchmark")


def benchmark_problems(out: Path, request: EvalRequest, display: Display) -> list[Problem]:
    """The judgeable problems of every source, collected once for the evaluation in `out`."""
    path = out / SCRATCH / PROBLEMS
    if not path.exists():
        rows = list(_collected(out / SCRATCH / "collect", request, display))
        path.parent.mkdir(exist_ok=True)
        write_table(path.with_suffix(".partial"), Problem, rows)
        path.with_suffix(".partial").replace(path)
    return list(read_table(path, Problem))


def _collected(scratch: Path, request: EvalRequest, display: Display) -> Iterator[Problem]:
    protocols = request.evaluation.evaluate.protocols
    for name in dict.fromkeys(p.source or p.name for p in protocols):
        file = request.files.get(name)
        found = _from_file(file, name, scratch / name) if file else _from_hub(name, display)
        judgeable = [p for p in found if p.judgeable]
        if not judgeable:
            raise ValueError(f"{name}: none of its {len(found)} problems has an answer or tests")
        yield from judgeable[: request.limit]


def _from_file(file: Path, name: str, scratch: Path) -> list[Problem]:
    if (own := problems_of_file(file, name)) is not None:
        return own
    source = source_of_files(name, [file.absolute()])
    scratch.mkdir(parents=True, exist_ok=True)
    collect.body(scratch, settings=CollectSettings(root="/", sources=(source,)), seed=0)
    return list(read_table(scratch / KEPT, Problem))


def _from_hub(name: str, display: Display) -> list[Problem]:
    with active(Run(store=open_store(load_machine()), display=display)):
        collected = from_hub(settings=CollectSettings(sources=(Source(use=name),)))
    return list(read_table(collected.file(KEPT), Problem))
