from eval.records import Score
from tasks.answers.pass_rates import Tally, pass_rate_histogram, tally


def test_a_tally_counts_unscored_answers_as_samples_only():
    common = {"problem_id": "a", "reward": None, "correct": None, "pass_rate": None}
    unscored = Score(**common, verdict="IE")
    right = Score(problem_id="a", reward=1.0, correct=True, pass_rate=1.0, verdict="AC")
    wrong = Score(problem_id="b", reward=0.0, correct=False, pass_rate=0.0, verdict="WA")
    assert tally([right, wrong, unscored]) == {"a": Tally(2, 1, 1), "b": Tally(1, 1, 0)}
    assert tally([unscored])["a"].pass_rate is None


def test_the_histogram_has_tenths_by_domain_and_a_column_for_one():
    rates = [("math", 0.55), ("math", 0.59), ("math", 1.0), ("code", 0.0)]
    assert pass_rate_histogram(rates) == {
        "pass_rate/code/0.0": 1.0,
        "pass_rate/math/0.5": 2.0,
        "pass_rate/math/1.0": 1.0,
    }
