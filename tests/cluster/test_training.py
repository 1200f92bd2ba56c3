"""SFT and RL over both nodes of a cluster: the loss of one process, whatever happens to a node."""

import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from klear.configs.settings.topology import Launch
from klear.configs.settings.training import RLSettings, SFTSettings, TrainRuntime
from klear.tasks.engine.child import ChildFailed
from klear.tasks.models import launch
from klear.training.launch.jobs import RLJob, SFTJob
from klear.training.launch.result_files import CHECKPOINTS, latest
from tests.training.conftest import small_examples, small_files, small_problems

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
RUNTIME = TrainRuntime(precision="fp32", gradient_checkpointing=False, threads=1)
SFT = SFTSettings(
    epochs=40, batch_tokens=800, max_length=256, learning_rate=2e-4, min_learning_rate=1e-4,
    checkpoint_steps=8, runtime=RUNTIME,
)  # fmt: skip
# one update a rollout: of several, which prompts share one depends on the processes
RL = RLSettings(
    steps=12, prompts_per_step=8, rollouts_per_prompt=4, mini_batch_prompts=8, learning_rate=1e-3,
    warmup_steps=1, max_tokens=16, engine="transformers", checkpoint_steps=2,
    runtime=RUNTIME,
)  # fmt: skip
TWO_NODES = Launch(nodes=2, launcher="ray")
MODULE = ("-P", "-m", "the name of a module")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What training begins with, in a folder that both nodes see."""
    problems = small_problems(16)
    return small_files(tmp_path_factory.mktemp("shared"), problems, small_examples(problems, 1))


@pytest.fixture
def train(start: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    original, scripts = launch.command_of, dict[str, list[str]]()

    def command_of(job_file: Path, launch: Launch, launcher: str) -> list[str]:
        command = original(job_file, launch, launcher)
        if launcher not in scripts:
            return command
        at = command.index("-P")
        script, *words = scripts[launcher]
        return [*command[:at], str(HERE / script), *words, *command[at + len(MODULE) :]]

    monkeypatch.setattr(launch, "command_of", command_of)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(kind: str, out: Path, spec: Launch) -> int:
        out.mkdir(parents=True)
        scripts.update(ray=["loopback.py", "launch"])
        model = start["checkpoint"]
        job = SFTJob(out=out, base=model, examples=start["examples"], settings=SFT)
        if kind == "rl":
            scripts.update(ray=["loopback.py", "fixed"], alone=["fixed_answers.py"])
            job = RLJob(out=out, checkpoint=model, problems=start["problems"], settings=RL)
        return int(launch.run_launched(job, out, spec).get("restarts", 0))

    return run


def losses(out: Path) -> dict[int, float]:
    lines = map(json.loads, (out / "logs" / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["metrics"]["loss"] for line in lines if "loss" in line["metrics"]}


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_node_that_dies_costs_a_restart_and_changes_no_loss(cluster, tmp_path, train, kind):
    def die_after_a_checkpoint() -> None:
        while latest(tmp_path / "two" / ".resume" / CHECKPOINTS) is None:
            if over.wait(0.01):
                return
        cluster.kill(cluster.nodes[-1])
        cluster.second()
        over.wait()  # the node ends with the thread that started it

    over = threading.Event()
    killer = threading.Thread(target=die_after_a_checkpoint)
    killer.start()
    try:
        assert train(kind, tmp_path / "one", Launch()) == 0
        restarts = train(kind, tmp_path / "two", TWO_NODES)
    finally:
        over.set()
        killer.join()
        cluster.kill(cluster.nodes[-1])  # it dies with its thread: let it be dead, not dying
    assert restarts == 1
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) > 5
    assert two == pytest.approx(one, rel=1e-3)
    assert min(one.values()) < max(one.values())
    alone = load_file(tmp_path / "one" / "checkpoint" / "model.safetensors")
    for name, weight in load_file(tmp_path / "two" / "checkpoint" / "model.safetensors").items():
        torch.testing.assert_close(weight, alone[name], rtol=1e-2, atol=1e-3)
    logs = {path.name for path in (tmp_path / "two" / "logs").iterdir()}
    assert {"child.log", "node-0.log", "node-1.log", "rank-1.log"} <= logs


def test_a_node_that_does_not_see_the_folder_is_refused_by_name(blind, place, train):
    with pytest.raises(ChildFailed, match=r"does not see .* a file system that"):
        train("sft", place / "out", TWO_NODES)
    assert not (place / "out" / "logs" / "node-0.log").exists()
