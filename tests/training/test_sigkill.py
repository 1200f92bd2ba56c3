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
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.judging import JudgeRuntime, RolloutJudgeSettings
from klear.configs.settings.topology import Launch
from klear.eval.records import Problem
from klear.eval.records.tables import write_table
from klear.tasks.engine.child import alone
from klear.tasks.engine.supervise import supervised
from klear.tasks.models.launch import command_of
from klear.training.launch import result_files
from klear.training.launch.jobs import RLJob, SFTJob
from tests.training import killed_child
from tests.training.test_reward import adding

ROOT = Path(__file__).parents[2]
HOOKS = ("on_train_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step",
         "on_step_end", "on_log", "on_save", "on_train_end", *killed_child.OUTSIDE)  # fmt: skip
ONCE = ("on_train_begin", "on_train_end", *killed_child.OUTSIDE)
system = partial(pytest.param, marks=pytest.mark.system)
KILL, TERM = signal.SIGKILL, signal.SIGTERM
STOPS = int(os.environ.get("STOPS", "2"))
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
    command = [sys.executable, killed_child.__file__, kind, *words, hook, call, int(sign)]
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


def started(job: SFTJob | RLJob, command: Any = alone) -> "subprocess.Popen[bytes]":
    file = job.out / result_files.SCRATCH / "job.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(job.model_dump_json())
    with (job.out / "child.log").open("ab") as log:
        return subprocess.Popen(command(file), env=ENVIRONMENT, cwd=ROOT, stdout=log, stderr=log,
                                start_new_session=True)  # fmt: skip


def progress(out: Path) -> dict[str, int]:
    path = out / result_files.PROGRESS
    return json.loads(path.read_text()) if path.exists() else {"done": 0, "total": 0}


def wait_for_step(process: Any, out: Path, step: int) -> None:
    """Until so many are done; 0: until the first begins."""
    while progress(out)["done"] < step or not progress(out)["total"]:
        assert process.poll() is None, (out / "child.log").read_text()[-3000:]
        time.sleep(0.005)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_stop_at_any_moment_of_training_ends_with_the_bits_of_an_undisturbed_run(
    files, tmp_path, kind
):
    """Of `run_job` with the judge of programs. `STOPS=20` in the environment for twenty stops."""
    programs = tmp_path / "code.parquet"
    write_table(programs, Problem, [adding(f"Add {i}.", 4) for i in range(16)])
    judge = RolloutJudgeSettings(runtime=JudgeRuntime(workers=1))
    code = {"domain": "code", "random_reward": 0.5, "judge": judge, "max_tokens": 48}

    def job(name: str) -> SFTJob | RLJob:
        same: dict[str, Any] = {"out": tmp_path / name, "seed": 3}
        if kind == "sft":
            same |= {"base": files["checkpoint"], "examples": files["examples"]}
            return SFTJob(**same, settings=killed_child.SFT.model_copy(update={"epochs": 8}))
        settings = killed_child.RL.model_copy(update=code)
        return RLJob(**same, checkpoint=files["checkpoint"], problems=programs, settings=settings)

    seed = random.SystemRandom().randrange(10**6)
    rng, undisturbed = random.Random(seed), job("whole")
    process = started(undisturbed)
    wait_for_step(process, undisturbed.out, 0)
    began = time.monotonic()
    assert process.wait() == 0, (undisturbed.out / "child.log").read_text()
    seconds, stops, tries = time.monotonic() - began, 0, 0
    while stops < STOPS:
        tries += 1
        sign, moment, cut = (TERM, KILL)[stops % 2], rng.uniform(0, seconds), job(f"cut-{tries}")
        process = started(cut)
        wait_for_step(process, cut.out, 0)
        time.sleep(moment)
        process.send_signal(sign) if sign == TERM else os.killpg(process.pid, sign)
        if process.wait() == 0:
            continue  # it was quicker than the undisturbed one
        stops += 1
        print(f"seed {seed}: stop {stops}, {sign.name} after {moment:.2f} s")
        assert started(cut).wait() == 0, (cut.out / "child.log").read_text()
        check_same(cut.out, undisturbed.out)


@pytest.mark.system
def test_two_processes_save_their_step_and_go_on_to_the_same_bits(files, tmp_path):
    """SIGTERM to both, as Cancel and Suspend send it."""
    settings = killed_child.SFT.model_copy(update={"epochs": 20, "checkpoint_steps": 10**6})
    same = {"base": files["checkpoint"], "examples": files["examples"], "settings": settings}
    undisturbed, cut = (SFTJob(out=tmp_path / name, seed=3, **same) for name in ("whole", "cut"))
    launch = Launch(processes=2, sharding="none")

    def both(file: Path) -> list[str]:
        """With a minute to save, whatever else the machine does meanwhile."""
        return [*supervised(60.0), *command_of(file, launch, "local")]

    assert started(undisturbed, both).wait() == 0, (undisturbed.out / "child.log").read_text()
    process = started(cut, both)
    wait_for_step(process, cut.out, 3)
    process.terminate()
    process.wait()
    newest = result_files.latest(cut.out / ".resume/checkpoints")
    assert newest, (cut.out / "child.log").read_text()[-3000:]
    assert 3 <= result_files.number_of(newest) < progress(undisturbed.out)["done"]
    assert started(cut, both).wait() == 0, (cut.out / "child.log").read_text()
    check_same(cut.out, undisturbed.out)
