"""SIGKILL at any moment of training, then the same job again: the same curves and the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOKS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log",
         "on_save")  # fmt: skip
CHILD = Path(__file__).with_name("killed_child.py")
CLOCKS = ("seconds/", "tokens_per_second")


def killed(kind: str, checkpoint: Path, data: Path, out: Path, hook: str, call: int) -> None:
    command = [sys.executable, CHILD, kind, checkpoint, data, out, hook, call]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def curves(out: Path) -> list[tuple[int, dict[str, float]]]:
    lines = [json.loads(line) for line in (out / "logs/metrics.jsonl").read_text().splitlines()]
    return [
        (line["step"], {n: v for n, v in line["metrics"].items() if not n.startswith(CLOCKS)})
        for line in lines
    ]


@pytest.mark.parametrize(("kind", "updates"), [("rl", 16), ("sft", 20)])
def test_a_killed_run_ends_with_the_curves_and_bits_of_a_whole_one(
    files, tmp_path, child, kind, updates
):
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    hook = rng.choice(HOOKS)
    rare = {"on_log": 4, "on_save": 4}
    call = rng.randint(1, rare.get(hook, updates))
    print(f"seed {seed}: SIGKILL in call {call} of {hook}")
    inputs = files["checkpoint"], files["problems" if kind == "rl" else "examples"]
    child.train(kind, *inputs, tmp_path / "whole")

    killed(kind, *inputs, tmp_path / "cut", hook, call)
    assert not (tmp_path / "cut/checkpoint").exists()
    child.train(kind, *inputs, tmp_path / "cut")

    steps = [step for step, _ in curves(tmp_path / "cut")]
    assert steps == sorted(set(steps)), "a step was logged twice"
    assert curves(tmp_path / "cut") == curves(tmp_path / "whole")
    for name in ["checkpoint/model.safetensors", *(["rollouts.parquet"] if kind == "rl" else [])]:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    if kind == "rl":
        whole, cut = (tmp_path / each / "logs/off_policy.jsonl" for each in ("whole", "cut"))
        assert cut.read_bytes() == whole.read_bytes()
