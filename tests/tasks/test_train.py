"""When a trained checkpoint may be reused."""

import runpy
from pathlib import Path

from eval.benchmarks import benchmarks
from tasks.models import train


def test_another_judge_is_another_version_of_rl_and_of_nothing_else(monkeypatch):
    monkeypatch.setattr(benchmarks, "GRADER_VERSION", benchmarks.GRADER_VERSION + 1)
    later = runpy.run_path(str(Path(train.__file__)))
    assert later["rl"].version == train.rl.version + 1
    assert (later["sft"].version, later["base"].version) == (train.sft.version, train.base.version)
