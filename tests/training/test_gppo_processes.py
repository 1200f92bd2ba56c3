"""The same update on one process, on two, and on two that each hold half of the weights (gloo)."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from processes import output_of
from safetensors.torch import load_file

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("trained_by_processes.py")
LEAN = SCRIPT.with_name("lean.py")
SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}


def run(files: dict[str, Path], out: Path, processes: int, **env: str) -> Path:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    words = [LEAN, SCRIPT, files["checkpoint"], files["examples"], out]
    quiet = {
        "PYTHONPATH": f"{ROOT / '.package'}:{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *(launcher if processes > 1 else []), *words]
    output_of(*command, cwd=ROOT, env={**os.environ, **quiet, **env})
    return out


@pytest.fixture(scope="module")
def alone(files, tmp_path_factory):
    return run(files, tmp_path_factory.mktemp("one"), 1)


@pytest.mark.parametrize("env", [{}, SHARDED], ids=["copies", "shards"])
def test_two_processes_make_the_update_of_one(files, alone, tmp_path, env):
    both = run(files, tmp_path, 2, **env)
    before = load_file(files["checkpoint"] / "model.safetensors")
    for kind in ("padded", "kept", "packed", "sft"):
        one, two = (load_file(f / kind / "model.safetensors") for f in (alone, both))
        assert any(not torch.equal(before[n], w) for n, w in one.items())
        for name, weight in one.items():
            torch.testing.assert_close(
                two[name], weight, rtol=1e-4, atol=2e-5, msg=f"{kind} {name}"
            )
    for kind in ("padded", "packed"):
        one, two = (json.loads((f / f"{kind}.json").read_text()) for f in (alone, both))
        assert len(one) == 2
        assert two == pytest.approx(one, rel=1e-3)
    for unbroken, resumed in (("padded", "resumed"), ("sft", "sft_resumed")):
        of_both = [(both / n / "model.safetensors").read_bytes() for n in (unbroken, resumed)]
        assert of_both[0] == of_both[1]
    for folder in (alone, both):
        unbroken, half = (load_file(folder / n / "model.safetensors") for n in ("sft", "half"))
        assert all(torch.equal(half[n], w.bfloat16()) for n, w in unbroken.items())
