"""The benchmark of training/README.md, as it stands there, at toy size."""

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "training/README.md").read_text()
COMMANDS = re.findall(r"^python (tests/bench/bench_rl_step\.py)(.*)$", README, re.M)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    return importlib.import_module("bench_rl_step")


def test_the_rl_step_measures_both_trainers_and_finds_one_gradient(bench, monkeypatch):
    monkeypatch.setattr(bench, "in_a_process", lambda work, *arguments: work(*arguments))
    line = bench.compare(bench.parsed(["--context", "24", "--steps", "1", "--budget", "512"]))
    assert json.loads(json.dumps(line)) == line
    assert line["ours"] > 0
    assert line["ratio"] == pytest.approx(line["ours"] / line["peer"][bench.PEER], rel=0.05)
    assert "answers to 24 tokens, 8 of 20 groups dead, model tiny on cpu" in line["setup"]
    assert float(line["setup"].rpartition(" ")[2]) < 1e-4


@pytest.mark.parametrize("words", [words for _, words in COMMANDS])
def test_the_commands_of_the_readme_are_understood(bench, words):
    options = bench.parsed(shlex.split(words))
    assert options.device == ("cuda" if "--device cuda" in words else "cpu")
