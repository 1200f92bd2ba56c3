"""klear.eval.judge.grades: our judge beside published grades."""

import pytest

from klear.eval.judge.grades import TAIL_CHARS, Grade, compare
from klear.eval.records import Problem, Sample
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
