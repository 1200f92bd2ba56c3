"""A sample of the real corpora: known solutions pass, wrong ones do not.

The command `python tests/bench/corpus_code.py` judges all of them.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from configs.settings.judging import JudgeSettings

SCRIPT = Path(__file__).parents[1] / "bench/corpus_code.py"
SHARED = Path(__file__).parents[3] / "shared/data"

# LeetCode offers sortedcontainers, which is not installed here; the other has several answers.
EXPECTED = {"word-ladder-ii", "sortedcontainers", "SortedList"}


@pytest.fixture(scope="module")
def corpus():
    if not SHARED.exists():
        pytest.skip("needs ../shared/data")
    spec = importlib.util.spec_from_file_location("corpus_code", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["corpus_code"] = module
    spec.loader.exec_module(module)
    return module


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
def test_known_solutions_pass_and_wrong_ones_fail(corpus, name, every, at_least):
    run = corpus.Run()
    try:
        for entry in corpus.entries(name, every):
            run.judge(entry, JudgeSettings(stop_at_first_failure=not entry.right))
    finally:
        run.sandbox.close()
    found = [f for f in run.findings if not any(word in f.name + f.reason for word in EXPECTED)]
    assert not found
    assert run.counts["right passes"] >= at_least
    assert run.counts["wrong fails"] >= at_least
    assert not run.counts["wrong passes"]


@pytest.mark.parametrize("problem", ["klippaprotein", "trulstrubbel"])
def test_accepted_submissions_pass_and_rejected_ones_fail(corpus, problem):
    run = corpus.Run()
    try:
        run.kodsport(1, only=problem)
    finally:
        run.sandbox.close()
    assert not run.findings
    assert run.counts["right passes"] >= 1
    assert run.counts["wrong fails"] >= 1
