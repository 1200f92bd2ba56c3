"""klear.eval.judge.grades: our judge beside published grades."""

import pytest

from klear.eval.judge.grades import TAIL_CHARS, Grade, compare
from klear.eval.records import Problem, Sample, Score

P = Problem(domain="math", prompt="What is 1 + 1?", answer="2")


def score(index: int, correct: bool | None) -> Score:
    number = None if correct is None else float(correct)
    return Score(problem_id=P.id, index=index, reward=number, correct=correct, pass_rate=number,
                 verdict="IE" if correct is None else "AC" if correct else "WA")  # fmt: skip


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
        [score(i, c) for i, c in enumerate(ours)],
        [grade(i, c) for i, c in enumerate(published)],
    )
    assert (found.both_right, found.both_wrong) == (2, 2)
    assert (found.only_ours, found.only_published) == (1, 1)
    assert found.share == pytest.approx(4 / 6)
    low, high = found.interval
    assert 0 < low < 4 / 6 < high < 1


def test_unscored_and_ungraded_answers_are_counted_apart_and_nothing_compared_is_no_agreement():
    scores = [score(0, True), score(1, None), score(2, True)]
    found = compare([P], [], scores, [grade(0, True), grade(1, True), grade(9, False)])
    assert (found.compared, found.unscored, found.ungraded, found.share) == (1, 2, 1, 1.0)
    found = compare([], [], [score(0, True)], [])
    assert (found.share, found.interval) == (None, (0.0, 1.0))


def test_a_disagreement_carries_what_a_reader_needs_to_settle_it():
    found = compare([P], [sample(0, "x" * 1000 + "the end")], [score(0, False)], [grade(0, True)])
    (row,) = found.disagreements
    assert (row.gold, row.prompt) == ("2", P.prompt)
    assert (row.score, row.grade) == (score(0, False), grade(0, True))
    assert len(row.tail) == TAIL_CHARS
    assert row.tail.endswith("the end")
