"""Some rows of every corpus: known solutions pass, wrong ones do not.

The command `python tests/bench/corpus_code.py` judges all of them.
"""

import pytest
from shared_data import DATA, SAMPLE

from klear.configs.settings.judging import JudgeSettings
from tests.bench import corpus_code

# LeetCode offers sortedcontainers, which is not installed here; the other has several answers.
EXPECTED = {"word-ladder-ii", "sortedcontainers", "SortedList"}


CONTESTS = ["sums", "largest"] if DATA == SAMPLE else ["klippaprotein", "trulstrubbel"]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(corpus_code, "DATA", DATA)
    running = corpus_code.Run()
    yield running
    running.sandbox.close()


@pytest.mark.parametrize(
    ("name", "some"),
    [("leetcode_v0.2.0", 12), ("leetcode_v0.3.1", 2), ("humaneval", 8), ("mbpp", 15),
     ("mbpp_plus", 2)],
)  # fmt: skip
def test_known_solutions_pass_and_wrong_ones_fail(run, name, some):
    every = len(list(corpus_code.rows(name))) // some
    for entry in corpus_code.entries(name, every):
        run.judge(entry, JudgeSettings(stop_at_first_failure=not entry.right))
    assert not [f for f in run.findings if not any(w in f["name"] + f["reason"] for w in EXPECTED)]
    assert run.counts["right passes"] >= some - len(EXPECTED)
    assert run.counts["wrong fails"] >= some - len(EXPECTED)
    assert not run.counts["wrong passes"]


@pytest.mark.parametrize("problem", CONTESTS)
def test_accepted_submissions_pass_and_rejected_ones_fail(run, problem):
    run.kodsport(1, only=problem)
    assert not run.findings
    assert run.counts["right passes"] >= 1
    assert run.counts["wrong fails"] >= 1
