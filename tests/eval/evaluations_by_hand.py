"""Problems, scores, and the files of an evaluation and of its benchmarks, written by hand."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

from klear.eval.benchmarks.benchmarks import RESULTS, BenchmarkResult, Statement
from klear.eval.records import Problem, Score
from klear.eval.records.tables import write_table

STATEMENT = Statement(
    model="m", checkpoint="c", engine="e", temperature=1.0, top_p=1.0, max_tokens=8,
    yarn_factor=None, template="t", grader_version=1, sandbox="none", seed=0, resamples=1,
)  # fmt: skip


def math_problem(prompt: str, source: str = "s", **more: Any) -> Problem:
    """One whose answer is 1 unless `more` says otherwise."""
    return Problem(**{"domain": "math", "answer": "1", **more}, prompt=prompt, source=source)


def result(name: str, k: int, source: str = "", **window: str) -> BenchmarkResult:
    fields = {"date_from": "", "date_to": "", **window}
    return BenchmarkResult(
        name=name, source=source or name, k=k, problems=1, problems_unscored=0, samples=k,
        samples_unscored=0, truncated=0, mean_tokens=1.0, avg=0.5, ci_low=None, ci_high=None,
        pass_at_k=None, majority_at_k=None, statement=STATEMENT, **fields,
    )  # fmt: skip


def evaluation(
    folder: Path,
    results: list[BenchmarkResult],
    problems: list[tuple[str, str, str | None]],
    verdicts: dict[tuple[str, int], str],
) -> Path:
    """Problems as (id, source, date), verdicts by (id, index)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(RESULTS.dump_json(tuple(results)))
    problems_asked = [math_problem(i, source, id=i, date=date) for i, source, date in problems]
    right = {"AC": True, "WA": False, "IE": None}
    write_table(folder / "problems.parquet", Problem, problems_asked)
    scores = [scored(i, right[verdict], index) for (i, index), verdict in verdicts.items()]
    write_table(folder / "scores.parquet", Score, scores)
    return folder


def scored(problem_id: str, correct: bool | None, index: int = 0, **more: Any) -> Score:
    """Right, wrong, or unscored."""
    share = None if correct is None else float(correct)
    verdict = {True: "AC", False: "WA", None: "IE"}[correct]
    fields = {"reward": share, "pass_rate": share, "correct": correct, "verdict": verdict, **more}
    return Score.model_validate({"problem_id": problem_id, "index": index, **fields})


def packed(value: object) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()
