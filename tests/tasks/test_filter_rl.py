from pathlib import Path

from configs.settings.data import FilterRLSettings
from eval.records import Problem, Rejected, Score, StdinCase, TestSuite
from eval.tables import read_table, write_table
from tasks.answers.filter_rl import filter_rl
from tasks.store.store import Artifact

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


def test_nine_of_sixteen_answers_that_pass_is_a_majority_and_eight_is_not(tmp_path: Path):
    """Code counts answers that pass: a wrong one here passes 90 % of its tests."""
    names = ("math8", "math9", "code8", "code9")
    rows = {name: scores(name, int(name[-1]), 16 - int(name[-1])) for name in names}
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == ["math9", "code9"]
    reason = "8 of 16 samples pass; needs more than 0.5"
    assert rejected == {"math8": reason, "code8": reason}
    assert metrics["rejected_too_few_passed"] == 2.0


def test_the_inclusive_reading_of_figure_4_changes_code_only(tmp_path: Path):
    rows = {"code": scores("code", 8, 8), "math": scores("math", 8, 8)}
    assert run(tmp_path, rows, code_inclusive=True)[1] == ["code"]


def test_unscored_answers_leave_the_share_and_too_few_scored_ones_prove_nothing(tmp_path: Path):
    rows = {
        "math5": scores("math5", 5, 4, unscored=7),  # as wrong answers: 5 of 16
        "math7": scores("math7", 7, 0, unscored=9),
        "code": [],
    }
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == ["math5"]
    assert rejected == {"math7": "only 7 of 16 samples were scored", "code": "no samples"}
    assert metrics["rejected_too_few_scored"] == metrics["rejected_unsampled"] == 1.0
