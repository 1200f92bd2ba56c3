"""SIGKILL or SIGTERM at any moment of training, then the same job again: the same curves and bits.

With vLLM in the stage's own process too; there the log-probability that vLLM gives every token is
the policy's own after updates that changed it by far more: it samples from the updated policy.
"""

import json
import os
import random
import signal
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from klear.training.launch import result_files
from tests.training import killed_child

ROOT = Path(__file__).parents[2]
HOOKS = ("on_train_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step",
         "on_step_end", "on_log", "on_save", "on_train_end", *killed_child.OUTSIDE)  # fmt: skip
ONCE = ("on_train_begin", "on_train_end", *killed_child.OUTSIDE)
system = partial(pytest.param, marks=pytest.mark.system)
KILL, TERM = signal.SIGKILL, signal.SIGTERM
CLOCKS = ("seconds/", "tokens_per_second")
PATHS = [str(ROOT / ".package"), str(ROOT), os.environ.get("PYTHONPATH", "")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, PATHS)),
               "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_NO_USAGE_STATS": "1", "NO_PROXY": "127.0.0.1"}  # fmt: skip


def stage(kind: str, *words: Any, hook: str = "", call: int = 0, sign: int = KILL) -> None:
    """Run it to its end, or until it gets a signal in a hook."""
    if not hook and kind != "vllm_colocate":
        killed_child.train(kind, *words)
        return
    lean = [] if kind == "vllm_colocate" else [ROOT / "tests/training/lean.py"]
    script = killed_child.__file__
    command = [sys.executable, *lean, script, kind, *words, hook, call, int(sign)]
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    ended = result_files.STOPPED if sign == TERM and hook not in killed_child.OUTSIDE else -sign
    expected = ended if hook else 0
    assert done.returncode == expected, done.stderr[-3000:]


def curves(out: Path) -> list[tuple[int, dict[str, float]]]:
    lines = [json.loads(line) for line in (out / "logs/metrics.jsonl").read_text().splitlines()]
    return [
        (line["step"], {n: v for n, v in line["metrics"].items() if not n.startswith(CLOCKS)})
        for line in lines
    ]


@pytest.fixture(scope="module")
def stages(files, vllm_checkpoint, tmp_path_factory):
    """`stages(kind)`: the words of a stage, and its folder where it ran without a stop."""

    @cache
    def run(kind: str) -> tuple[tuple[Any, ...], Path]:
        start = vllm_checkpoint if kind == "vllm_colocate" else files["checkpoint"]
        words = kind, start, files["examples" if kind == "sft" else "problems"]
        out = tmp_path_factory.mktemp(kind)
        stage(*words, out)
        return words, out

    return run


def check_same(cut: Path, undisturbed: Path) -> None:
    assert curves(cut) == curves(undisturbed)
    for name in ("checkpoint/model.safetensors", "rollouts.parquet", "logs/off_policy.jsonl"):
        if (undisturbed / name).exists():
            assert (cut / name).read_bytes() == (undisturbed / name).read_bytes(), name


@pytest.mark.parametrize(
    ("kind", "steps", "updates"),
    [("rl", 4, 16), system("sft", 4, 20), system("vllm_colocate", 2, 8)],
)
def test_a_killed_run_ends_with_the_curves_and_bits_of_a_whole_one(
    stages, tmp_path, kind, steps, updates
):
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    hook = rng.choice(HOOKS)
    calls = {"on_log": steps, "on_save": steps // 2} | dict.fromkeys(ONCE, 1)
    call = rng.randint(1, calls.get(hook, updates))
    print(f"seed {seed}: SIGKILL in call {call} of {hook}")
    words, undisturbed = stages(kind)
    stage(*words, tmp_path, hook=hook, call=call)
    assert not (tmp_path / "checkpoint").exists()
    stage(*words, tmp_path)
    logged = [step for step, _ in curves(tmp_path)]
    assert logged == sorted(set(logged)), "a step was logged twice"
    assert any(metrics["loss"] for _, metrics in curves(undisturbed))
    assert (kind == "sft") != (undisturbed / "rollouts.parquet").exists()
    check_same(tmp_path, undisturbed)
    if kind == "vllm_colocate":
        (_, first), (_, second) = curves(undisturbed)
        assert first["ratio/log_max"] - first["ratio/log_min"] > 1.0  # the first rollout moved it
        assert all(0 < line["mismatch/logp_difference"] < 1e-4 for line in (first, second))


@pytest.mark.parametrize(
    ("kind", "hook", "call", "step"),
    [
        system("sft", "on_step_begin", 1, 0),  # nothing is saved: the stage begins anew
        ("sft", "on_step_begin", 5, 4),  # in the middle of a log line
        system("sft", "on_pre_optimizer_step", 5, 5),
        system("rl", "judge_many", 4, 1),  # the second rollout is sampled and forgotten
        system("rl", "on_optimizer_step", 6, 2),  # after it, with an update made
    ],
)
def test_a_stopped_run_saves_its_step_and_goes_on_to_the_same_bits(
    stages, tmp_path, kind, hook, call, step
):
    words, undisturbed = stages(kind)
    stage(*words, tmp_path, hook=hook, call=call, sign=TERM)
    assert not (tmp_path / "checkpoint").exists()
    newest = result_files.latest(tmp_path / ".resume/checkpoints")
    assert (result_files.number_of(newest) if newest else 0) == step * (4 if kind == "rl" else 1)
    stage(*words, tmp_path)
    check_same(tmp_path, undisturbed)
