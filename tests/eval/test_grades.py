"""Our judge beside published grades; published scores, reproduced from the published answers."""

from pathlib import Path

import pytest

from klear.configs.settings.engines import EngineSettings
from klear.eval.judge.grades import TAIL_CHARS, Grade, compare
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem, Sample
from klear.eval.row_files import read_rows
from klear.training.engines.without_model import Recording, recordings
from tests.eval.evaluations_by_hand import scored

P = Problem(domain="math", prompt="What is 1 + 1?", answer="2")


def grade(index: int, correct: bool) -> Grade:
    return Grade(problem_id=P.id, index=index, model="teacher", correct=correct)


def sample(index: int, text: str = "answer") -> Sample:
    return Sample(problem_id=P.id, index=index, model="teacher", text=text)


def test_every_cell_of_the_confusion_table_is_counted():
    ours = [True, True, True, False, False, False]
    published = [True, True, False, False, False, True]
    found = compare(
        [P],
        [sample(i) for i in range(6)],
        [scored(P.id, c, i) for i, c in enumerate(ours)],
        [grade(i, c) for i, c in enumerate(published)],
    )
    assert (found.both_right, found.both_wrong) == (2, 2)
    assert (found.only_ours, found.only_published) == (1, 1)
    assert found.share == pytest.approx(4 / 6)
    low, high = found.interval
    assert 0 < low < 4 / 6 < high < 1


def test_unscored_and_ungraded_answers_are_counted_apart_and_nothing_compared_is_no_agreement():
    scores = [scored(P.id, True, 0), scored(P.id, None, 1), scored(P.id, True, 2)]
    found = compare([P], [], scores, [grade(0, True), grade(1, True), grade(9, False)])
    assert (found.compared, found.unscored, found.ungraded, found.share) == (1, 2, 1, 1.0)
    found = compare([], [], [scored(P.id, True, 0)], [])
    assert (found.share, found.interval) == (None, (0.0, 1.0))


def test_a_disagreement_carries_what_a_reader_needs_to_settle_it():
    found = compare(
        [P], [sample(0, "x" * 1000 + "the end")], [scored(P.id, False, 0)], [grade(0, True)]
    )
    (row,) = found.disagreements
    assert (row.gold, row.prompt) == ("2", P.prompt)
    assert (row.score, row.grade) == (scored(P.id, False, 0), grade(0, True))
    assert len(row.tail) == TAIL_CHARS
    assert row.tail.endswith("the end")


FILE = Path(__file__).parents[3] / "shared" / "data" / "skythought_cot" / "aime24.jsonl.gz"
ENGINE = EngineSettings(
    kind="recorded", files=(str(FILE),), grade_field="correct",
    think_tags=("<|begin_of_thought|>", "<|end_of_thought|>"),
    solution_tags=("<|begin_of_solution|>", "<|end_of_solution|>"),
)  # fmt: skip


def test_every_model_gets_its_published_score_on_aime24():
    """990 graded answers of 32 fine-tunes. Two grades of truncated answers are not ours (the
    report of `replay` shows both), so all scores together may be off by two answers."""
    if not FILE.exists():
        pytest.skip("needs ../shared/data/skythought_cot/aime24.jsonl.gz")
    rows = (row.value for row in read_rows(FILE) if row.value)
    asked = (Problem(domain="math", prompt=r["question"], answer=str(r["gt"])) for r in rows)
    problems = {p.id: p for p in asked}
    found = [r for r in recordings(ENGINE) if isinstance(r, Recording)]
    samples, grades = [r.sample for r in found], [r.grade for r in found if r.grade]
    assert (len(problems), len({s.model for s in samples})) == (30, 32)
    with Judge() as judge:
        judged = ((problems[s.problem_id], s.text, s.index) for s in samples)
        both = compare(problems.values(), samples, judge.judge_many(judged), grades)
    assert (both.compared, both.unscored) == (990, 0)
    assert both.only_ours + both.only_published <= 2
