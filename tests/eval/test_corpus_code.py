"""A sample of the real corpora: known solutions pass, wrong ones do not.

The command `python tests/bench/corpus_code.py` judges all of them.
"""

import pytest
from shared_data import DATA

from klear.configs.settings.judging import JudgeSettings
from tests.bench import corpus_code

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")

# LeetCode offers sortedcontainers, which is not installed here; the other has several answers.
EXPECTED = {"word-ladder-ii", "sortedcontainers", "SortedList"}


@pytest.fixture
def run():
    running = corpus_code.Run()
    yield running
    running.sandbox.close()


@pytest.mark.parametrize(
    ("name", "every", "at_least"),
    [
        ("leetcode_v0.2.0", 60, 25),
        ("leetcode_v0.3.1", 60, 1),
        ("humaneval", 12, 12),
        ("mbpp", 30, 30),
        ("mbpp_plus", 90, 2),
    ],
)
def test_known_solutions_pass_and_wrong_ones_fail(run, name, every, at_least):
    for entry in corpus_code.entries(name, every):
        run.judge(entry, JudgeSettings(stop_at_first_failure=not entry.right))
    assert not [f for f in run.findings if not any(w in f["name"] + f["reason"] for w in EXPECTED)]
    assert run.counts["right passes"] >= at_least
    assert run.counts["wrong fails"] >= at_least
    assert not run.counts["wrong passes"]


@pytest.mark.parametrize("problem", ["klippaprotein", "trulstrubbel"])
def test_accepted_submissions_pass_and_rejected_ones_fail(run, problem):
    run.kodsport(1, only=problem)
    assert not run.findings
    assert run.counts["right passes"] >= 1
    assert run.counts["wrong fails"] >= 1
