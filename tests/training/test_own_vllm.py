"""An RL stage and the vLLM server that it starts for itself: the real one, on CPU.

One run with two disasters, since every start of vLLM costs most of a minute.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from processes import below, commanded, left

from tasks.models.launch import RESTARTS
from training.layout import CHECKPOINTS, latest, step_of_checkpoint
from training.vllm.sampler import HANDED_OVER

# three starts of vLLM, a minute each on a free machine
pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
STAGE = Path(__file__).with_name("own_server_stage.py")
SERVER = "training.vllm.server"
UPDATES = 4  # of a rollout
STEPS = 6  # enough for one to be left wherever a disaster comes late
DEADLINE_S = 1_800.0


@pytest.fixture
def stage(files, vllm_checkpoint, tmp_path):
    """`stage()`: the processes of the stage, which resumes in `tmp_path/out`."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        out = tmp_path / "out"
        words = [sys.executable, STAGE, vllm_checkpoint, files["problems"], out, STEPS]
        more = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            list(map(str, words)), env={**os.environ, **more}, text=True,
            stdout=subprocess.PIPE, stderr=(tmp_path / "said").open("a"),
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def once(is_so: Callable[[], bool], process: "subprocess.Popen[str]", out: Path) -> None:
    """Wait until it is so, as long as the stage runs."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        said = [f.read_text()[-2_000:] for f in out.glob("logs/*.log")]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def reached(out: Path) -> int:
    newest = latest(out / ".resume" / CHECKPOINTS)
    return step_of_checkpoint(newest) if newest else 0


def test_a_stage_serves_itself_and_survives_its_own_end_and_that_of_its_server(stage, tmp_path):
    out = tmp_path / "out"
    first = stage()
    once(lambda: reached(out) > 0, first, out)
    tree = below(first.pid)
    assert commanded(SERVER, tree)
    first.kill()
    assert not left(tree)  # none of them, the engine below the server neither

    begun = reached(out)
    second = stage()
    once(lambda: reached(out) > begun, second, out)
    tree = below(second.pid)
    servers = commanded(SERVER, tree)
    assert servers
    for server in servers:
        server.kill()
    said, _ = second.communicate(timeout=DEADLINE_S)
    assert (second.returncode, said) == (0, "1\n"), (tmp_path / "said").read_text()

    lines = [json.loads(line) for line in (out / "logs/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    (restart,) = (out / "logs" / RESTARTS).read_text().splitlines()
    rollout_lost = json.loads(restart)["step"] // UPDATES + 1
    trained = {m["step"]: m["metrics"] for m in lines if m["metrics"]["updates"]}
    assert max(m["ratio/log_max"] - m["ratio/log_min"] for m in trained.values()) > 0.1
    # each was sampled from the policy as it was then, also from the server that was started last
    assert all(0 < m["mismatch/logp_difference"] < 1e-4 for m in trained.values())
    assert max(trained) >= rollout_lost
    assert (out / "checkpoint/model.safetensors").is_file()
    assert "ended with exit code -9 in the middle" in (out / "logs/child.log").read_text()
    assert not list((out / ".resume" / CHECKPOINTS / HANDED_OVER).iterdir())
    assert not left(tree)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(out) in _words(p)]


def _words(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or ())
