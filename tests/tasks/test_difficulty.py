from pathlib import Path

import pytest
from pydantic import ValidationError

from configs.settings.data import DifficultySettings
from eval.records import Problem, Sample, Score
from eval.tables import read_table, write_table
from tasks.answers.difficulty import Difficulty, difficulty
from tasks.store.store import Artifact


def score(problem: str, index: int, correct: bool | None) -> Score:
    rate = None if correct is None else float(correct)
    return Score(problem_id=problem, index=index, reward=rate, correct=correct, pass_rate=rate,
                 verdict="IE" if correct is None else "AC" if correct else "WA")  # fmt: skip


def run(tmp_path: Path, marks: dict[str, list[bool | None]], samples: int | None = None, **chosen):
    out = tmp_path / "out"
    out.mkdir()
    problems = [
        Problem(id=i, domain="math", prompt=f"problem {i}", answer="1", source=f"source_{i}")
        for i in marks
    ]
    scores = [score(i, k, mark) for i, row in marks.items() for k, mark in enumerate(row)]
    answers = [Sample(problem_id=s.problem_id, index=s.index, model="m", text="") for s in scores]
    write_table(tmp_path / "kept.parquet", Problem, problems)
    write_table(tmp_path / "scores.parquet", Score, scores)
    write_table(tmp_path / "samples.parquet", Sample, answers[:samples])
    everything = Artifact.of_folder(tmp_path)
    metrics = difficulty.body(
        out, everything, everything, everything, settings=DifficultySettings(**chosen)
    )
    return metrics, list(read_table(out / "difficulty.parquet", Difficulty))


def test_easy_is_strictly_above_the_threshold(tmp_path: Path):
    metrics, rows = run(tmp_path, {"a": [True, False], "b": [True, True, False]})
    assert [(r.problem_id, r.label, r.pass_rate) for r in rows] == [
        ("a", "hard", 0.5),
        ("b", "easy", 2 / 3),
    ]
    assert metrics["hard"] == metrics["easy"] == 1.0


def test_unscored_answers_leave_the_rate_and_no_rating_is_no_label(tmp_path: Path):
    metrics, rows = run(tmp_path, {"a": [True, None, None], "b": [None], "c": []})
    assert [(r.label, r.scored) for r in rows] == [("easy", 1), ("unrated", 0), ("unrated", 0)]
    assert metrics["unrated"] == 2.0


def test_a_source_that_is_known_to_be_easy_or_hard_decides_whatever_the_pass_rate(tmp_path: Path):
    marks: dict[str, list[bool | None]] = {
        "a": [True, False], "b": [True, True], "c": [None], "d": [True],
    }  # fmt: skip
    known = {"easy_sources": ("source_a", "source_c"), "hard_sources": ("source_b",)}
    metrics, rows = run(tmp_path, marks, rater="source", **known)
    labels = [(r.label, r.pass_rate) for r in rows]
    assert labels == [("easy", 0.5), ("hard", 1.0), ("easy", None), ("unrated", 1.0)]
    assert (metrics["easy"], metrics["hard"], metrics["unrated"]) == (2.0, 1.0, 1.0)


def test_sources_are_named_where_they_decide_and_nowhere_else():
    for told in ({"rater": "source"}, {"rater": "teacher", "hard_sources": ("a",)}):
        with pytest.raises(ValidationError, match="rater source goes together with easy_sources"):
            DifficultySettings(**told)
    with pytest.raises(ValidationError, match="'a' is named both easy and hard"):
        DifficultySettings(rater="source", easy_sources=("a",), hard_sources=("b", "a"))


def test_scores_of_other_samples_are_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="1 samples but 2 scores"):
        run(tmp_path, {"a": [True, False]}, samples=1)
