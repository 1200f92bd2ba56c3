"""Forecasts by rates measured at such work on such machines, else by FLOPs and assumptions."""

import os
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.base import Settings
from klear.configs.settings.data import DedupSettings, SampleSettings
from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.evaluation import EvaluateSettings
from klear.configs.settings.judging import JudgeSettings
from klear.configs.settings.topology import Assumptions, Topology
from klear.configs.settings.training import BaseModelSettings, RLSettings, SFTSettings
from klear.tasks.answers.distill import distill
from klear.tasks.answers.judge import judge
from klear.tasks.engine.stage import Stage
from klear.tasks.models.evaluate import evaluate
from klear.tasks.models.train import rl, sft
from klear.tasks.planning.plan import Forecaster, resumed
from klear.tasks.planning.work import StoreHistory
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.store.hardware import gpus, split, this_machine
from klear.tasks.store.store import MANIFEST, Artifact, Store
from klear.training.launch.result_files import METRICS, StepLines
from tests.tasks.manifests_by_hand import publish

QWEN = 8_190_735_360
SIZES = Assumptions(prompt_tokens=300, answer_tokens=10_000)
CLUSTER = Topology(nodes=2, gpus_per_node=4, gpu="H100", cores_per_node=10, assume=SIZES)
PEAK = 989e12
H100 = "8 × NVIDIA H100 80GB HBM3"
SFT = SFTSettings(batch_tokens=1000)


def given(**metrics: float) -> Artifact:
    return Artifact(stage="upstream", key="k", digest="", folder=Path(), metrics=metrics)


HELD_OUT = given(**{"kept/aime24": 30, "kept/livecodebench": 1055})
OF_THE_PAPER = 64 * (30 + 30 + 30) + 8 * (374 + 131)
"""Answers to all benchmarks of Table 1."""


def forecast(
    root: Path, stage: Stage, settings: Settings, *inputs: Artifact, on: Topology = CLUSTER
) -> PlannedStage:
    forecaster = Forecaster(StoreHistory(Store(root)), on, BaseModelSettings())
    return forecaster.of(stage, inputs, settings)


def engine(kind: str, model: str, **runtime: float) -> SampleSettings:
    fields = {"kind": kind, "model": model, "runtime": runtime}
    fields |= {"base_url": "http://127.0.0.1:1/v1"} if kind == "openai" else {}
    return SampleSettings(samples_per_prompt=4, engine=EngineSettings.model_validate(fields))


def test_sft_takes_six_flops_a_parameter_and_token_and_costs_its_gpu_hours(tmp_path):
    priced = CLUSTER.model_copy(update={"gpu_hour_price": 2.5})
    data = given(kept=1000, answer_tokens=5000)
    estimate = forecast(tmp_path, sft, SFTSettings(epochs=2), given(), data, on=priced)
    tokens = 2 * 1000 * (5000 + 300)
    assert estimate.tokens == tokens
    assert estimate.seconds == pytest.approx(6 * QWEN * tokens / (8 * PEAK * 0.4))
    assert estimate.gpu_hours == pytest.approx((estimate.seconds or 0) * 8 / 3600)
    assert estimate.cost == pytest.approx(2.5 * (estimate.gpu_hours or 0))
    assert estimate.bytes == 2 * QWEN
    assert estimate.assumed
    assert estimate.assumptions == ("prompt_tokens", "train_mfu")
    nothing_known = forecast(tmp_path, sft, SFTSettings(), given(), data, on=Topology())
    assert nothing_known.seconds is None  # on a machine without GPUs


def test_rl_generates_judges_and_trains_and_an_evaluation_asks_every_problem_k_times(tmp_path):
    answers = 10 * 128 * 8
    estimate = forecast(tmp_path, rl.named("rl_math"), RLSettings(steps=10), given(), given())
    assert estimate.tokens == answers * 10_000
    generate = 2 * QWEN * answers * 10_000 / (8 * PEAK * 0.05)
    trained = answers * 10_300
    forward, train = 2 * QWEN * trained / (8 * PEAK * 0.4), 6 * QWEN * trained / (8 * PEAK * 0.4)
    assert estimate.seconds == pytest.approx(generate + answers / (25 * 10) + forward + train)
    on_four = EvaluateSettings.model_validate({"engine_runtime": {"data_parallel": 4}})
    estimate = forecast(tmp_path, evaluate.named("evaluate_sft"), on_four, given(), HELD_OUT)
    assert estimate.tokens == OF_THE_PAPER * 10_000
    assert estimate.seconds == pytest.approx(2 * QWEN * estimate.tokens / (4 * PEAK * 0.05))
    # A learning curve asks every kept model, and RL writes each: of 100 steps 10, 20, … 90.
    model, plain = (
        forecast(tmp_path, rl.named("rl_math"), RLSettings(steps=100, **more), given(), given())
        for more in ({"keep_every": 10}, {})
    )
    assert model.counts["models_kept"] == 9
    assert model.bytes == pytest.approx(10 * (plain.bytes or 0))
    curve = {"learning_curve": {"k": 4, "benchmarks": ["aime24"]}}
    settings, kept = EvaluateSettings.model_validate(curve), given(**model.counts)
    estimate = forecast(tmp_path, evaluate.named("evaluate_rl_math"), settings, kept, HELD_OUT)
    assert estimate.tokens == (OF_THE_PAPER + 9 * 4 * 30) * 10_000
    # Killed after the answers of the last model: those of the kept ones are still to be made.
    (tmp_path / ".resume").mkdir()
    (tmp_path / ".resume/progress.json").write_text('{"done": 7, "total": 7, "note": ""}')
    assert resumed(estimate, tmp_path, "").tokens == pytest.approx(9 * 4 * 30 * 10_000)


MEASURED = {"stream_tokens_per_second": 40.0, "requests_in_flight": 100}


@pytest.mark.parametrize(
    ("runtime", "measured", "rate"),
    [
        ({}, {}, None),
        ({}, MEASURED, 100 * 40),
        ({"concurrency": 64}, MEASURED, 64 * 40),
        ({}, {"tokens_per_second": 70.0}, 70),  # it does not stream
    ],
)
def test_an_endpoint_is_as_fast_as_it_was_measured_and_costs_its_prices(
    tmp_path, runtime, measured, rate
):
    problems = given(**{"kept": 100, "kept/a": 100})
    metrics = {"samples": 10, "tokens": 100_000, **measured}
    publish(tmp_path, "distill", settings=engine("openai", "r1"), metrics=metrics, seconds=9)
    settings = engine("openai", "r1", input_price=1.0, output_price=2.0, **runtime)
    estimate = forecast(tmp_path, distill, settings, problems)
    tokens = 400 * 10_000
    assert estimate.tokens == tokens
    assert estimate.seconds == (rate and pytest.approx(tokens / rate))
    assert estimate.cost == pytest.approx((400 * 300 * 1.0 + tokens * 2.0) / 1e6)
    assert estimate.gpu_hours is None
    elsewhere = {"base_url": "https://elsewhere.example/v1"}
    other = {"engine": settings.engine.model_copy(update=elsewhere)}
    estimate = forecast(tmp_path, distill, settings.model_copy(update=other), problems)
    assert estimate.seconds is None


def test_what_rests_on_an_assumption_upstream_stays_marked(tmp_path):
    publish(tmp_path, "judge", settings=JudgeSettings(), metrics={"scores": 100}, seconds=10)
    distilled = forecast(
        tmp_path, distill, engine("openai", "r1"), given(**{"kept": 9, "kept/a": 9})
    )
    answers = given(**distilled.counts)
    estimate = forecast(tmp_path, judge, JudgeSettings(), given(), answers)
    sure = forecast(tmp_path, judge, JudgeSettings(), given(), given(samples=36))
    assert answers.metrics["samples"] == 36
    assert (estimate.assumed, sure.assumed) == (True, False)


def test_a_measured_rate_replaces_the_flops_and_is_named(tmp_path):
    """Half the GPUs were measured: the plan's are twice as fast together."""
    publish(tmp_path, "base", settings=BaseModelSettings())
    settings = SFTSettings(batch_tokens=1000, checkpoint_steps=100)
    publish(
        tmp_path, "sft", settings=settings, metrics={"steps": 40}, seconds=10,
        hardware="4 × NVIDIA H100 80GB HBM3", inputs=(("base", "k"),), size=77,
    )  # fmt: skip
    estimate = forecast(tmp_path, sft, settings, given(), given(kept=1000, answer_tokens=5000))
    assert estimate.tokens == 4 * 1000 * 5300
    assert estimate.seconds == pytest.approx(estimate.tokens / (4000 * 2))
    assert estimate.bytes == 77
    # Examples that lie in the store do not say how long they are: an epoch is what it was then.
    chosen, half = given(kept=1000), settings.model_copy(update={"epochs": settings.epochs / 2})
    assert forecast(tmp_path, sft, half, given(), chosen).tokens == 40 * 1000 / 2


def test_a_long_stage_is_as_fast_as_a_long_one_was_and_not_as_a_short_one_was(tmp_path):
    """The newest result is of one step, whose time is that of its start."""
    settings = SFTSettings(batch_tokens=1000)
    publish(tmp_path, "base", settings=BaseModelSettings())
    same = {"settings": settings, "inputs": (("base", "k"),), "hardware": this_machine()}
    publish(tmp_path, "sft", **same, key="long", metrics={"steps": 20_000}, seconds=10_000)
    publish(tmp_path, "sft", **same, key="short", metrics={"steps": 1}, seconds=100)
    for name, age in (("long", 100), ("short", 0)):
        os.utime(tmp_path / "sft" / name / MANIFEST, (1_000 - age, 1_000 - age))
    here, examples = Topology(assume=SIZES), given(kept=1000, answer_tokens=5000)
    estimate = forecast(tmp_path, sft, settings, given(), examples, on=here)
    assert estimate.tokens
    assert estimate.seconds == pytest.approx(estimate.tokens / 2000)


def rate(root: Path, body: str, stage: str, gpus: int = 0, gpu: str = "") -> float | None:
    """Of the stage's newest result, for this machine or for one with such GPUs."""
    history = StoreHistory(Store(root))
    on = Topology(gpu=gpu, gpus_per_node=8) if gpu else Topology()
    return Forecaster(history, on).rate(body, next(history.results_of(stage)), gpus)


SIX_GPUS = engine("vllm", "Qwen/Qwen3-8B", tensor_parallel=2, data_parallel=3)
SPEED = {"tokens": 9000, "tokens_per_second": 4500}  # the engine alone, and the stage
ON_8 = {"gpus": 8, "gpu": "H100"}


@pytest.mark.parametrize(
    ("body", "stage", "settings", "metrics", "on", "per_second"),
    [
        ("dedup", "dedup", DedupSettings(), {"kept": 900, "rejected": 100}, {}, 100),
        ("judge", "judge_rl", JudgeSettings(), {"scores": 50}, {}, 5),
        ("sft", "sft", SFT, {"steps": 20}, {}, 2000),
        ("rl", "rl_math", RLSettings(), {"rollout_steps": 10}, {}, 10 * 128 * 8 * 400 / 10),
        ("evaluate", "evaluate_sft", EvaluateSettings(), {"completion_tokens": 400}, {}, 40),
        # Measured on more or fewer GPUs, it is counted by the GPU: of the engine, of all nodes.
        ("distill", "distill", SIX_GPUS, SPEED, ON_8, 4500 * 8 / 6),
        ("evaluate", "evaluate_sft", EvaluateSettings(), {"completion_tokens": 400}, ON_8, 40 * 8),
        ("sft", "sft", SFT, {"steps": 20, "processes": 32}, ON_8, 2000 * 8 / 32),
    ],
)
def test_a_rate_is_work_by_seconds(tmp_path, body, stage, settings, metrics, on, per_second):
    lengths = {"completions/mean_length": [300.0, 500.0]}
    fields = {"settings": settings, "metrics": metrics, "curve": lengths}
    publish(tmp_path, stage, **fields, seconds=10, hardware=H100 if on else "")
    assert rate(tmp_path, body, stage, **on) == per_second


def test_gpu_work_is_only_compared_on_the_same_card(tmp_path):
    for number, (hardware, gpu, usable) in enumerate((
        (H100, "H100", True),
        (H100, "H200", False),
        (this_machine(), "", True),
        (H100, "", False),  # planned for this machine, which has no such card
        ("", "", True),  # an older manifest does not say where
    )):  # fmt: skip
        root = tmp_path / str(number)
        publish(root, "sft", settings=SFT, metrics={"steps": 20}, hardware=hardware)
        assert (rate(root, "sft", "sft", 8, gpu) is not None) == usable


def test_a_resumed_stage_is_as_slow_as_all_its_attempts(tmp_path):
    """Ten steps of two seconds, killed after five, an hour of pause; the last attempt took 12 s."""
    publish(tmp_path, "sft", settings=SFT, metrics={"steps": 10}, seconds=12)
    times = [2.0 * i + (3600 if i >= 5 else 0) for i in range(10)]
    lines = StepLines(tmp_path / "sft" / "k" / METRICS, after_step=0)
    for step, at in enumerate(times):
        lines.write({"step": step, "time": at, "metrics": {}})
    assert rate(tmp_path, "sft", "sft") == pytest.approx(10 * 1000 / 20)


def test_gpus_are_counted_and_named_by_the_driver_and_read_back_so(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   12\n")
    assert (gpus(tmp_path), gpus(tmp_path / "nothing")) == ("2 × NVIDIA H200", "")
    assert split("8 × NVIDIA H100 80GB HBM3") == (8, "NVIDIA H100 80GB HBM3")
    assert split("") == (1, "")


def random_base(hidden: int) -> BaseModelSettings:
    return BaseModelSettings(kind="random", hidden=hidden)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a small and a large model, and of judging with four tests and with all."""
    root = tmp_path_factory.mktemp("measured")
    few = JudgeSettings(max_tests=4)
    publish(root, "judge", "few", settings=few)
    publish(root, "judge_rl", "all", settings=JudgeSettings())
    publish(root, "rate", "small", settings=engine("vllm", "Qwen/Qwen3-1.7B"))
    publish(root, "rate", "large", settings=engine("vllm", "Qwen/Qwen3-8B", data_parallel=2))
    for key, hidden in (("small", 96), ("large", 128)):
        publish(root, "base", key, settings=random_base(hidden))
        publish(root, "sft", key, settings=SFTSettings(), inputs=(("base", key),))
        publish(root, "rl_math", key, settings=RLSettings(), inputs=(("sft", key),))
    return root


@pytest.mark.parametrize(
    ("body", "stage", "settings", "compared"),
    [
        ("distill", "rate", engine("vllm", "Qwen/Qwen3-8B"), ["large"]),  # the same model
        ("sft", "sft", SFTSettings(), ["large"]),  # the model that it goes back to
        ("rl", "rl_math", RLSettings(), ["large"]),
        ("rl", "rl_code", RLSettings(domain="code"), ["large"]),
        ("rl", "rl_math", RLSettings(engine="transformers"), []),
        ("judge", "judge", JudgeSettings(max_tests=4), ["few"]),
        ("judge", "judge", JudgeSettings(), ["all"]),  # as many tests
    ],
)
def test_only_the_same_kind_of_work_is_compared(measured, body, stage, settings: Any, compared):
    forecaster = Forecaster(StoreHistory(Store(measured)), base=random_base(128))
    assert [p.manifest.key for p in forecaster.comparable(body, stage, settings)] == compared
