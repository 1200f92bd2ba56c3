import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from configs.settings.data import FilterRLSettings
from eval.records import Problem, Rejected, Score, StdinCase, TestSuite
from eval.tables import read_table, write_table
from tasks.answers.filter_rl import filter_rl
from tasks.store.store import Artifact

DATA = Path(__file__).parents[3] / "shared" / "data"
TESTS = TestSuite(kind="stdin", cases=(StdinCase(input="1", output="1"),))


def problem(id_: str) -> Problem:
    if id_.startswith("code"):
        return Problem(id=id_, domain="code", prompt=id_, tests=TESTS)
    return Problem(id=id_, domain="math", prompt=id_, answer="1")


def scores(id_: str, passed: int, failed: int, unscored: int = 0) -> list[Score]:
    right = {"reward": 1.0, "correct": True, "pass_rate": 1.0, "verdict": "AC"}
    wrong = {"reward": 0.9, "correct": False, "pass_rate": 0.9, "verdict": "WA"}
    none = {"reward": None, "correct": None, "pass_rate": None, "verdict": "IE"}
    marks = [right] * passed + [wrong] * failed + [none] * unscored
    return [Score(problem_id=id_, index=i, **mark) for i, mark in enumerate(marks)]  # type: ignore


def run(tmp_path: Path, rows: dict[str, list[Score]], **chosen):
    out = tmp_path / "out"
    out.mkdir()
    write_table(tmp_path / "kept.parquet", Problem, [problem(i) for i in rows])
    write_table(tmp_path / "scores.parquet", Score, [s for marks in rows.values() for s in marks])
    inputs = Artifact.of_folder(tmp_path)
    metrics = filter_rl.body(out, inputs, inputs, settings=FilterRLSettings(**chosen))
    kept = [p.id for p in read_table(out / "kept.parquet", Problem)]
    rejected = {r.id: r.reason for r in read_table(out / "rejected.parquet", Rejected)}
    return metrics, kept, rejected


def test_nine_of_sixteen_is_a_majority_and_eight_is_not(tmp_path: Path):
    rows = {"math8": scores("math8", 8, 8), "math9": scores("math9", 9, 7)}
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == ["math9"]
    assert rejected == {"math8": "8 of 16 samples pass; needs more than 0.5"}
    assert metrics["pass_rate/math/0.5"] == metrics["rejected_too_few_passed"] == 1.0


def test_code_counts_answers_that_pass_not_tests_that_pass(tmp_path: Path):
    rows = {"code8": scores("code8", 8, 8), "code9": scores("code9", 9, 7)}
    assert run(tmp_path, rows)[1] == ["code9"]


def test_the_inclusive_reading_of_figure_4_changes_code_only(tmp_path: Path):
    rows = {"code": scores("code", 8, 8), "math": scores("math", 8, 8)}
    assert run(tmp_path, rows, code_inclusive=True)[1] == ["code"]


def test_unscored_answers_leave_the_share(tmp_path: Path):
    # 5 of 9 scored pass; as wrong answers the 7 unscored would make it 5 of 16.
    assert run(tmp_path, {"math": scores("math", 5, 4, unscored=7)})[1] == ["math"]


def test_too_few_scored_answers_prove_nothing(tmp_path: Path):
    rows = {"math": scores("math", 7, 0, unscored=9), "code": []}
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == []
    assert rejected == {"math": "only 7 of 16 samples were scored", "code": "no samples"}
    assert metrics["rejected_too_few_scored"] == metrics["rejected_unsampled"] == 1.0


def test_a_majority_of_real_answers_is_rare_on_aime24(tmp_path: Path):
    path = DATA / "skythought_cot" / "aime24.jsonl.gz"
    if not path.exists():
        pytest.skip("needs ../shared/data/skythought_cot/aime24.jsonl.gz")
    marks: dict[str, Counter[bool]] = defaultdict(Counter)
    with gzip.open(path, "rt") as lines:
        for row in map(json.loads, lines):
            marks[f"aime{row['idx']}"][row["correct"]] += 1
    rows = {id_: scores(id_, count[True], count[False]) for id_, count in marks.items()}
    metrics, kept, _ = run(tmp_path, rows)
    assert set(kept) == {id_ for id_, count in marks.items() if count[True] > count[False]}
    assert metrics["kept"] + metrics["rejected"] == 30.0
    assert 0 < len(kept) < 10
