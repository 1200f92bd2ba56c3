"""The example and the benchmark of training/README.md, as they stand there, at toy size."""

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

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


def test_the_example_trains_with_standard_arguments_of_trl(files, tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for theirs, ours in (("Qwen/Qwen3-0.6B", str(files["checkpoint"])),
                         ('"out",', '"out", use_cpu=True, bf16=False,')):  # fmt: skip
        assert theirs in example
        example = example.replace(theirs, ours)
    exec(example, names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 2 * 8 * 8 // 32
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
