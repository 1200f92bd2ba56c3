"""Partial rollouts: nothing that was begun is lost, and a stop changes no bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klear.configs.settings.base import key_of
from klear.configs.settings.training import RLSettings
from klear.training.launch import result_files
from klear.training.rl import vllm_on_cpu
from klear.training.rl.partial import EVERY, Group, Pool, colocated
from tests.cluster.fixed_answers import LengthJudge
from tests.training import partial_child
from tests.training.conftest import ALONE
from tests.training.partial_child import SETTINGS, Scripted, ScriptedSampler
from tests.training.test_sigkill import ENVIRONMENT, ROOT, curves

LONGEST, SIZE, SLOTS, NEEDED = 16, 4, 16, 4
BITS = "checkpoint/model.safetensors", "rollouts.parquet", "logs/off_policy.jsonl"
UPDATES = SETTINGS.prompts_per_step // SETTINGS.mini_batch_prompts


def pool(processes: Any = ALONE) -> Pool:
    return Pool(SIZE, SLOTS, 7, processes)


def test_answers_of_another_number_of_processes_are_refused():
    two = SimpleNamespace(rank=0, size=2)
    with pytest.raises(ValueError, match="of 1 processes in flight, and these are 2: run as many"):
        pool(two).loads(pool().dumps())


def test_a_step_waits_for_no_process_but_for_complete_groups_anywhere():
    """The second process has only answers that are far longer than what the first one ends."""
    barrier, values = threading.Barrier(2), [[], []]

    def exchanged(rank: int, own: list[Any]) -> list[Any]:
        values[rank] = own
        barrier.wait()
        both = [*values[0], *values[1]]
        barrier.wait()
        return both

    class Slow(Scripted):
        def length(self, key: str) -> int:
            return 2 if int(key.split("-")[0]) % 2 == 0 else 10 * EVERY

    results: dict[int, list[Group]] = {}

    def process(rank: int) -> None:
        processes = SimpleNamespace(rank=rank, size=2, each=lambda v: exchanged(rank, [v]),
                                    objects=lambda v: exchanged(rank, v))  # fmt: skip
        groups = pool(processes)
        results[rank] = groups.run(Slow(20 * EVERY), 0, NEEDED, lambda n: [n], 20 * EVERY)
        waiting = [a for group in groups.groups for a in group.answers if group.number % 2]
        assert all(len(a.tokens) == EVERY for a in waiting)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1]
    assert [group.number for group in results[0]] == [0, 2, 4, 6]


def test_a_stage_without_partial_rollouts_keeps_the_key_that_it_had():
    assert "partial" not in key_of(RLSettings())
    assert '"partial_rollouts":true' in key_of(RLSettings(partial_rollouts=True, importance_cap=5))


def check(journal: list[Any], out: Path) -> None:
    """What was trained on is what the sampler gave, and the rest is in the last checkpoint."""
    sampled, trained = journal
    newest = result_files.latest(out / ".resume/checkpoints")
    assert newest
    state = json.loads((newest / "partial_rollouts_0.json").read_text())
    in_flight = {
        f"{g['number']}-{i}": a for g in state["groups"] for i, a in enumerate(g["answers"])
    }
    assert len(trained) == SETTINGS.steps * SETTINGS.prompts_per_step * 4
    assert len(trained) + len(in_flight) == 4 * state["begun"]
    for key, answer in in_flight.items():
        assert [answer["tokens"], answer["logps"]] == [*map(list, sampled.pop(key, [[], []]))]
    exact = [[tokens, list(array("f", logps))] for tokens, logps in sampled.values()]
    assert sorted(trained) == sorted(exact)
    first, *later = (metrics for _, metrics in curves(out))
    assert first["partial/age_max"] == 0
    assert any(line["partial/carried_tokens"] > 0 for line in (first, *later))
    assert any(0 < line["partial/age_mean"] < line["partial/age_max"] for line in later)


@pytest.fixture
def scripted(monkeypatch, files):
    """`scripted(out, judge)`: the stage with a scripted engine in vLLM's place."""
    monkeypatch.setattr(vllm_on_cpu, "VLLMOnCPU", ScriptedSampler)
    inputs = files["checkpoint"], files["problems"]
    return lambda out, judge=LengthJudge: partial_child.train(*inputs, out, judge, max_tokens=16)


def test_a_stop_during_a_rollout_forgets_it_and_goes_on_to_the_same_bits(scripted, tmp_path):
    class Stopping(LengthJudge):
        def judge_many(self, items: Any, draw: int = 0) -> Any:
            if draw == UPDATES:  # the second rollout is decoded, and no update made of it
                os.kill(os.getpid(), signal.SIGTERM)
            return super().judge_many(items, draw=draw)

    undisturbed, cut = tmp_path / "undisturbed", tmp_path / "cut"
    journal = scripted(undisturbed)
    check([dict(journal.sampled), journal.trained], undisturbed)
    with pytest.raises(SystemExit):
        scripted(cut, Stopping)
    scripted(cut)
    assert curves(cut) == curves(undisturbed)
    for name in BITS:
        assert (cut / name).read_bytes() == (undisturbed / name).read_bytes(), name
    newest = result_files.latest(cut / ".resume/checkpoints")
    assert newest
    shutil.rmtree(cut / "checkpoint")
    (newest / "partial_rollouts_0.json").unlink()
    with pytest.raises(
        ValueError, match=r"has no partial_rollouts_0\.json: it was written without"
    ):
        scripted(cut)


def test_trls_engine_gets_the_policy_decodes_and_sleeps():
    calls: list[str] = []
    llm = SimpleNamespace(
        llm_engine=None,
        wake_up=lambda tags: calls.append(f"wake {tags}"),
        sleep=lambda level: calls.append(f"sleep {level}"),
    )
    generation = SimpleNamespace(llm=llm, enable_sleep_mode=True, _llm_weights_sleeping=False)
    pytest.importorskip("vllm", reason="vLLM is not installed")
    trainer: Any = SimpleNamespace(
        vllm_generation=generation, args=SimpleNamespace(temperature=1.0), eos_token_ids=[2],
        load_policy=lambda: calls.append("load"),
    )  # fmt: skip
    with colocated(trainer):
        calls.append("decode")
    assert calls == ["load", "wake ['kv_cache']", "decode", "sleep 2"]
    assert generation._llm_weights_sleeping  # TRL loads them before it samples itself


@pytest.mark.system
def test_with_vllm_a_killed_stage_ends_as_a_whole_one_and_trains_on_what_was_sampled(
    vllm_checkpoint, files, tmp_path
):
    undisturbed, cut, file = tmp_path / "undisturbed", tmp_path / "cut", tmp_path / "journal.json"
    for out in (undisturbed, cut):  # the first leaves the second as it is after a SIGKILL
        command = [partial_child.__file__, vllm_checkpoint, files["problems"], out, file, cut]
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        if out == undisturbed:
            check(json.loads(file.read_text()), out)
            assert not (cut / "checkpoint").exists()
            first, *later = (metrics["mismatch/logp_difference"] for _, metrics in curves(out))
            assert first < 1e-4  # the sampler has the policy's weights
            assert max(later) > 1e-3  # carried tokens keep what an older policy gave them
    assert curves(cut) == curves(undisturbed)
    for name in BITS:
        assert (cut / name).read_bytes() == (undisturbed / name).read_bytes(), name
