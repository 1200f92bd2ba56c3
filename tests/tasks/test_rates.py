"""Rates are taken from results of the same kind of work on the same kind of machine."""

import json
from pathlib import Path

import pytest

from configs.settings.data import DedupSettings, JudgeStageSettings, SampleSettings
from configs.settings.engines import EngineSettings
from configs.settings.evaluation import EvaluateSettings
from configs.settings.judging import JudgeSettings
from configs.settings.topology import Topology
from configs.settings.training import BaseModelSettings, RLSettings, SFTSettings
from tasks.planning.forecast import Forecaster
from tasks.planning.history import StoreHistory
from tasks.store.hardware import this_machine
from tasks.store.store import Store
from tests.tasks.manifests_by_hand import publish

H100 = "8 × NVIDIA H100 80GB HBM3"


def rate(root: Path, body: str, stage: str, *, gpu: str = "", gpus: int = 0):
    history = StoreHistory(Store(root))
    on = Topology(gpu=gpu, gpus_per_node=8) if gpu else Topology()
    return Forecaster(history, on).rate(body, next(history.of(stage)), gpus)


def vllm(model: str, **runtime: int) -> SampleSettings:
    engine = {"kind": "vllm", "model": model, "runtime": runtime}
    return SampleSettings(engine=EngineSettings.model_validate(engine))


@pytest.mark.parametrize(
    ("body", "stage", "settings", "metrics", "per_second"),
    [
        ("dedup", "dedup", DedupSettings(), {"kept": 900, "rejected": 100}, 100),
        ("judge", "judge_rl", JudgeStageSettings(), {"scores": 50}, 5),
        ("sft", "sft", SFTSettings(batch_tokens=1000), {"steps": 20}, 2000),
        ("rl", "rl_math", RLSettings(), {"rollout_steps": 10}, 10 * 128 * 8 * 400 / 10),
        ("evaluate", "evaluate_sft", EvaluateSettings(), {"completion_tokens": 400}, 40),
    ],
)
def test_a_rate_is_work_by_seconds(tmp_path, body, stage, settings, metrics, per_second):
    lengths = {"completions/mean_length": [300.0, 500.0]}
    publish(tmp_path, stage, settings=settings, metrics=metrics, seconds=10, curve=lengths)

    assert rate(tmp_path, body, stage) == per_second


def test_generation_is_measured_by_the_engine_alone(tmp_path):
    metrics = {"tokens": 9000.0, "samples": 3.0, "tokens_per_second": 4500.0}
    settings = vllm("Qwen/Qwen3-8B", tensor_parallel=2, data_parallel=3)
    publish(tmp_path, "rate", settings=settings, metrics=metrics, seconds=99, hardware=H100)

    assert rate(tmp_path, "distill", "rate", gpu="H100", gpus=8) == 4500 * 8 / 6


@pytest.mark.parametrize(
    ("hardware", "gpu", "usable"),
    [
        (H100, "H100", True),
        (H100, "H200", False),
        (this_machine(), "", True),
        (H100, "", False),  # planned for this machine, which has no such card
        ("", "", True),  # an older manifest does not say where
    ],
)
def test_gpu_work_is_only_compared_on_the_same_card(tmp_path, hardware, gpu, usable):
    settings = SFTSettings(batch_tokens=1000)
    publish(tmp_path, "sft", settings=settings, metrics={"steps": 20}, hardware=hardware)

    assert (rate(tmp_path, "sft", "sft", gpu=gpu, gpus=8) is not None) == usable


def comparable(root: Path, body: str, stage: str, settings, base=None) -> list[str]:
    forecaster = Forecaster(StoreHistory(Store(root)), base=base)
    return [p.manifest.key for p in forecaster.comparable(body, stage, settings)]


def test_generation_compares_by_engine_and_model(tmp_path):
    publish(tmp_path, "rate", "small", settings=vllm("Qwen/Qwen3-1.7B"))
    publish(tmp_path, "rate", "same", settings=vllm("Qwen/Qwen3-8B", data_parallel=2))

    assert comparable(tmp_path, "distill", "rate", vllm("Qwen/Qwen3-8B")) == ["same"]


def test_training_compares_by_the_model_that_it_goes_back_to(tmp_path):
    for key, hidden in (("a", 96), ("b", 128)):
        base = BaseModelSettings(kind="random", hidden=hidden)
        publish(tmp_path, "base", key, settings=base)
        publish(tmp_path, "sft", key, settings=SFTSettings(), inputs=(("base", key),))
        publish(tmp_path, "rl_math", key, settings=RLSettings(), inputs=(("sft", key),))
    wide = BaseModelSettings(kind="random", hidden=128)

    assert comparable(tmp_path, "sft", "sft", SFTSettings(), wide) == ["b"]
    assert comparable(tmp_path, "rl", "rl_math", RLSettings(), wide) == ["b"]
    assert comparable(tmp_path, "rl", "rl_code", RLSettings(domain="code"), wide) == ["b"]
    assert comparable(tmp_path, "rl", "rl_math", RLSettings(engine="transformers"), wide) == []


def test_judging_compares_by_how_many_tests_are_run(tmp_path):
    few = JudgeStageSettings(judge=JudgeSettings(max_tests=4))
    publish(tmp_path, "judge", "few", settings=few)
    publish(tmp_path, "judge_rl", "all", settings=JudgeStageSettings())

    assert comparable(tmp_path, "judge", "judge", few) == ["few"]
    assert comparable(tmp_path, "judge", "judge", JudgeStageSettings()) == ["all"]


def test_training_over_several_nodes_is_counted_by_its_processes(tmp_path):
    settings, metrics = SFTSettings(batch_tokens=1000), {"steps": 20.0, "processes": 32.0}
    publish(tmp_path, "sft", settings=settings, metrics=metrics, hardware=H100)

    assert rate(tmp_path, "sft", "sft", gpu="H100", gpus=8) == 2000 * 8 / 32


def test_a_resumed_stage_is_as_slow_as_all_its_attempts(tmp_path):
    """Ten steps of two seconds, killed after five, an hour of pause; the last attempt took 12 s."""
    publish(
        tmp_path, "sft", settings=SFTSettings(batch_tokens=1000), metrics={"steps": 10}, seconds=12
    )
    times = [2.0 * i + (3600 if i >= 5 else 0) for i in range(10)]
    lines = [json.dumps({"step": i, "time": t, "metrics": {}}) for i, t in enumerate(times)]
    (tmp_path / "sft" / "k" / "logs" / "metrics.jsonl").write_text("\n".join(lines))

    assert rate(tmp_path, "sft", "sft") == pytest.approx(10 * 1000 / 20)
