"""vLLM as the sampler of an RL stage on CPU, in the stage's own process.

The proof that a rollout is sampled from the updated policy: vLLM's log-probability of every token
is the policy's own, after updates that changed it by far more.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("killed_child.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
               "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
               "NO_PROXY": "127.0.0.1"}  # fmt: skip


def stage(kind: str, checkpoint: Path, problems: Path, out: Path, hook="", call=0) -> int:
    command = [sys.executable, CHILD, kind, checkpoint, problems, out, hook, call]
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, env=ENVIRONMENT,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def curves(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "logs/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    clocks = ("seconds/", "tokens_per_second")
    return [
        {n: v for n, v in line["metrics"].items() if not n.startswith(clocks)} for line in lines
    ]


def sampled_from_the_updated_policy(out: Path) -> None:
    first, second = curves(out)
    assert first["ratio/log_max"] - first["ratio/log_min"] > 1.0  # the first rollout moved it
    for rollout in (first, second):
        assert 0 < rollout["mismatch/logp_difference"] < 1e-4


def test_a_colocated_vllm_samples_from_the_policy_and_a_killed_stage_repeats_its_samples(
    vllm_checkpoint, files, tmp_path
):
    given = "vllm_colocate", vllm_checkpoint, files["problems"]
    assert stage(*given, tmp_path / "whole") == 0
    sampled_from_the_updated_policy(tmp_path / "whole")
    # in the second rollout: the checkpoint after the first one is whole
    assert stage(*given, tmp_path / "cut", "on_pre_optimizer_step", 6) == -signal.SIGKILL
    assert stage(*given, tmp_path / "cut") == 0
    assert curves(tmp_path / "cut") == curves(tmp_path / "whole")
    for name in ("checkpoint/model.safetensors", "rollouts.parquet"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
