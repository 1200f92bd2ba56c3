"""Rows a CPU second of every data stage, whole: tables in, tables and pages out, one core.

    python tests/bench/bench_data_stages.py [--documents 20000] [--answers 4000]

Problems are the real documents of ../shared/data, read from JSON lines; benchmarks those of
bench_decontaminate.py. Every problem has 4 scores for `difficulty` and 16 for `filter_rl`;
`select` reads the long answers of ../shared/data/skythought_cot, 16 to a prompt. The figures are
`on_a_core` of the kinds of work in tasks/planning/work.py, what a plan takes where a store has
none.
"""

import argparse
import gzip
import itertools
import json
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from bench_decontaminate import benchmarks  # noqa: E402
from real_documents import DATA, documents, write_problems  # noqa: E402

from configs.settings.data import (  # noqa: E402
    DecontaminateSettings,
    DedupSettings,
    DifficultySettings,
    FilterRLSettings,
    FilterTestsSettings,
    SelectSettings,
)
from configs.settings.sources import CollectSettings, Source  # noqa: E402
from eval.records import Problem, Sample, Score  # noqa: E402
from eval.tables import write_table  # noqa: E402
from tasks.answers.difficulty import difficulty  # noqa: E402
from tasks.answers.filter_rl import filter_rl  # noqa: E402
from tasks.answers.select import select  # noqa: E402
from tasks.data.collect import collect  # noqa: E402
from tasks.data.decontaminate import decontaminate  # noqa: E402
from tasks.data.dedup import dedup  # noqa: E402
from tasks.data.filter_tests import filter_tests  # noqa: E402
from tasks.store.store import Artifact  # noqa: E402

EACH = 16
RATED = 4


def write_benchmarks(folder: Path) -> None:
    folder.mkdir()
    found = benchmarks().items()
    rows = (
        Problem(id=f"{name}-{i}", domain="math", prompt=text, answer="0", source=name)
        for name, texts in found
        for i, text in enumerate(texts)
    )
    write_table(folder / "kept.parquet", Problem, rows)


def cpu() -> float:
    """Of this process and of those that it has waited for."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, both))


def long_answers() -> list[str]:
    path = DATA / "skythought_cot" / "aime24.jsonl.gz"
    if not path.is_file():
        return ["word " * 6_000]
    with gzip.open(path, "rt") as lines:
        return [json.loads(line)["response"] for line in lines]


def score(problem: str, index: int) -> Score:
    right = index % 2 == 0
    return Score(
        problem_id=problem, index=index, reward=float(right), correct=right,
        pass_rate=float(right), verdict="AC" if right else "WA",
    )  # fmt: skip


class Measured:
    """Stages one after the other, each in a folder of its own; `rates` has rows a CPU second."""

    def __init__(self, place: Path) -> None:
        self.place, self.rates = place, dict[str, float]()

    def __call__(self, name: str, rows: int, body: Callable[[Path], object]) -> Artifact:
        out = self.folder(name)
        began = cpu()
        body(out)
        self.rates[name] = rows / (cpu() - began)
        print(f"{name:>14}: {self.rates[name]:>9,.0f} rows a CPU second", flush=True)
        return self.artifact(out)

    def folder(self, name: str) -> Path:
        out = self.place / name
        out.mkdir()
        return out

    @staticmethod
    def artifact(folder: Path) -> Artifact:
        return Artifact(stage=folder.name, key="k", digest=folder.name, folder=folder)


def scored(run: Measured, name: str, ids: list[str], each: int) -> Artifact:
    folder = run.folder(name)
    rows = (score(id_, i) for id_ in ids for i in range(each))
    write_table(folder / "scores.parquet", Score, rows)
    return run.artifact(folder)


def answered(run: Measured, name: str, ids: list[str], each: int, texts: list[str]) -> Artifact:
    folder = run.folder(name)
    given = itertools.cycle(texts)
    samples = (
        Sample(problem_id=id_, index=i, model="m", text=f"<think>{next(given)}</think> 4")
        for id_ in ids
        for i in range(each)
    )
    write_table(folder / "samples.parquet", Sample, samples)
    return run.artifact(folder)


def measure(place: Path, count: int, answers: int) -> Mapping[str, float]:
    texts, _ = documents(count)
    run, rows = Measured(place), len(texts)
    lines = "\n".join(json.dumps({"problem": t, "answer": "4"}) for t in texts)
    (place / "rows.jsonl").write_text(lines)
    write_benchmarks(place / "benchmarks")
    held_out = run.artifact(place / "benchmarks")
    source = Source(name="documents", files=("rows.jsonl",), prompt_field="problem")
    asked = CollectSettings(root=str(place), sources=(source,))
    run("collect", rows, lambda out: collect.body(out, settings=asked, seed=0))
    folder = run.folder("problems")
    write_problems(folder / "kept.parquet", texts)
    problems, ids = run.artifact(folder), [f"{i:016x}" for i in range(rows)]
    run("dedup", rows, lambda out: dedup.body(out, problems, settings=DedupSettings()))

    def clean(out: Path) -> object:
        return decontaminate.body(out, problems, held_out, settings=DecontaminateSettings())

    run("decontaminate", rows, clean)
    run("filter_tests", rows,
        lambda out: filter_tests.body(out, problems, settings=FilterTestsSettings()))  # fmt: skip
    passed = scored(run, "passed", ids, EACH)
    run("filter_rl", rows,
        lambda out: filter_rl.body(out, problems, passed, settings=FilterRLSettings()))  # fmt: skip
    short, rated = answered(run, "short", ids, RATED, ["so"]), scored(run, "rated", ids, RATED)
    labels = run("difficulty", rows, lambda out: difficulty.body(
        out, problems, short, rated, settings=DifficultySettings()))  # fmt: skip
    some = ids[: answers // EACH]
    long = answered(run, "long", some, EACH, long_answers())
    judged = scored(run, "judged", some, EACH)
    run("select", len(some) * EACH, lambda out: select.body(
        out, problems, long, judged, labels, settings=SelectSettings(), seed=0))  # fmt: skip
    return run.rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--answers", type=int, default=4_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates = measure(Path(folder), asked.documents, asked.answers)
    result = {
        "bench": "data_stages",
        "ours": {name: round(rate) for name, rate in rates.items()},
        "unit": "rows a CPU second",
        "setup": f"{asked.documents:,} documents, {asked.answers:,} long answers, one core",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
