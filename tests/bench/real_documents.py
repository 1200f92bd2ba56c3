"""Real documents for the benches of dedup: every prompt, solution and program of ../shared/data."""

import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from klear.eval.records import Problem, problem_id
from klear.eval.records.tables import ROWS_PER_GROUP, arrow_schema

DATA = Path(__file__).resolve().parents[3] / "shared/data"
FIELDS = (
    *("problem", "question", "prompt", "query", "text", "question_content", "problem_description"),
    *("solution", "reference_solution", "completion", "response", "canonical_solution", "code"),
    *("test", "answer"),
)
LONG_ANSWER = 100  # characters; a shorter answer is a number, not a document
T = TypeVar("T")


def documents(count: int) -> list[str]:
    """`count` of them, or all that there are, in a fixed random order."""
    if not DATA.exists():
        raise SystemExit("needs ../shared/data")
    texts: list[str] = []
    for path in sorted(DATA.glob("*/*.jsonl.gz")):
        for row in rows_of(path):
            if "skythought" in path.parent.name:  # long answers: a paragraph is a document
                texts += [p for p in row["response"].split("\n\n") if len(p) > 300][:27]
                continue
            fields = (row[name] for name in FIELDS if isinstance(row.get(name), str))
            texts += {t: None for t in fields if t != row.get("answer") or len(t) > LONG_ANSWER}
    texts = [text for text in texts if text.strip()]
    random.Random(0).shuffle(texts)
    return texts[:count]


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def write_problems(path: Path, texts: list[str]) -> None:
    """A table of problems as `collect` publishes it."""
    schema, _ = arrow_schema(Problem)
    one = Problem(domain="math", prompt="x", answer="1", source="documents").model_dump()
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, len(texts), ROWS_PER_GROUP):
            some = texts[start : start + ROWS_PER_GROUP]
            columns = {name: [value] * len(some) for name, value in one.items()}
            columns |= {"id": list(map(problem_id, some)), "prompt": some}
            writer.write_table(pa.table(columns, schema=schema))


def cpu_seconds(work: Callable[[], T], repeats: int = 1) -> tuple[float, T]:
    """The least CPU time (user + system, all threads) of `repeats` runs, and the last result."""
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        result = work()
        best = min(best, time.process_time() - began)
    return best, result  # type: ignore[possibly-undefined]
