"""The benchmarks of training run at toy size, with the commands that training/README.md gives."""

import argparse
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(
    r"^python (tests/bench/\S+\.py)(.*)$", (ROOT / "training/README.md").read_text(), re.M
)


def script(path: str, monkeypatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_rl_step_measures_both_trainers_and_finds_one_gradient(monkeypatch, capsys):
    bench = script("tests/bench/bench_rl_step.py", monkeypatch)
    monkeypatch.setattr(
        bench, "in_a_process", lambda job, kind, options: getattr(bench, job)(kind, options)
    )
    bench.main(["--context", "24", "--steps", "1", "--budget", "512"])
    line = last_line(capsys)
    assert line["ours"] > 0
    assert line["ratio"] == pytest.approx(line["ours"] / line["peer"][bench.PEER], rel=0.05)
    assert "answers to 24 tokens, 8 of 20 groups dead, model tiny on cpu" in line["setup"]
    assert float(line["setup"].rpartition(" ")[2]) < 1e-4


def test_the_head_gives_its_memory_and_its_share_of_the_products(monkeypatch, capsys):
    bench = script("tests/bench/bench_lm_head.py", monkeypatch)

    def here(side, options):
        return bench.measure(argparse.Namespace(**vars(options) | {"side": side}))

    monkeypatch.setattr(bench, "in_a_process", here)
    bench.main(["--tokens", "64", "--hidden", "16", "--vocab", "128", "--repeat", "2"])
    line = last_line(capsys)
    assert "64 tokens x 16 x 128, float32 on cpu" in line["setup"]
    assert re.search(r"[\d.]+ times the products", line["setup"])


@pytest.mark.parametrize(("path", "words"), COMMANDS)
def test_the_commands_of_the_readme_are_understood(path, words, monkeypatch):
    """Up to the first process that they would start."""
    bench = script(path, monkeypatch)
    told = []

    class Enough(Exception):
        pass

    def stop(*arguments):
        told.append(arguments[-1])
        raise Enough

    for name in ("in_a_process", "make_checkpoint"):
        monkeypatch.setattr(bench, name, stop, raising=False)
    with pytest.raises(Enough):
        bench.main(shlex.split(words))
    (options,) = told
    if "--device cuda" in words:
        assert options.device == "cuda"
