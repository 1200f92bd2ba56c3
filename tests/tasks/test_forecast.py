"""Forecasts: by measured rates where there are any, else by FLOPs and named assumptions."""

from pathlib import Path

import pytest

from configs.settings.base import Settings
from configs.settings.data import JudgeStageSettings, SampleSettings
from configs.settings.engines import EngineSettings
from configs.settings.evaluation import EvaluateSettings
from configs.settings.topology import Topology
from configs.settings.training import BaseModelSettings, RLSettings, SFTSettings
from tasks.answers.distill import distill
from tasks.answers.judge import judge
from tasks.models.evaluate import evaluate
from tasks.models.train import rl, sft
from tasks.planning.forecast import Forecaster
from tasks.planning.history import StoreHistory
from tasks.report.run_story import PlannedStage
from tasks.stage.stage import Stage
from tasks.store.store import Artifact, Store
from tests.tasks.manifests_by_hand import publish

QWEN = 8_190_735_360
CLUSTER = Topology(nodes=2, gpus_per_node=4, gpu="H100", cores_per_node=10)
PEAK = 989e12


def given(**metrics: float) -> Artifact:
    return Artifact(stage="upstream", key="k", digest="", folder=Path(), metrics=metrics)


def forecast(
    root: Path, stage: Stage, settings: Settings, *inputs: Artifact, on: Topology = CLUSTER
) -> PlannedStage:
    forecaster = Forecaster(StoreHistory(Store(root)), on, BaseModelSettings())
    found = forecaster.of(stage, inputs, settings)
    assert found is not None
    return found


def teacher(**runtime: float) -> SampleSettings:
    engine = {"kind": "openai", "model": "r1", "base_url": "http://127.0.0.1:1/v1",
              "runtime": runtime}  # fmt: skip
    return SampleSettings(samples_per_prompt=4, engine=EngineSettings.model_validate(engine))


def test_sft_takes_six_flops_a_parameter_and_token(tmp_path):
    settings = SFTSettings(epochs=2)
    data = given(kept=1000, answer_tokens=5000)

    found = forecast(tmp_path, sft, settings, given(), data)

    tokens = 2 * 1000 * (5000 + 300)
    assert found.tokens == tokens
    assert found.seconds == pytest.approx(6 * QWEN * tokens / (8 * PEAK * 0.4))
    assert found.gpu_hours == pytest.approx((found.seconds or 0) * 8 / 3600)
    assert found.bytes == 2 * QWEN
    assert found.assumed
    assert found.assumptions == ("prompt_tokens", "train_mfu")


def test_rl_generates_judges_and_trains_one_after_the_other(tmp_path):
    settings = RLSettings(steps=10)
    answers = 10 * 128 * 8

    found = forecast(tmp_path, rl.named("rl_math"), settings, given(), given())

    assert found.tokens == answers * 10_000
    generate = 2 * QWEN * answers * 10_000 / (8 * PEAK * 0.05)
    trained = answers * 10_300
    forward, train = 2 * QWEN * trained / (8 * PEAK * 0.4), 6 * QWEN * trained / (8 * PEAK * 0.4)
    assert found.seconds == pytest.approx(generate + answers / (25 * 10) + forward + train)


def test_evaluation_asks_every_problem_k_times_on_its_own_gpus(tmp_path):
    held_out = given(**{"kept/aime24": 30, "kept/livecodebench": 1055})
    settings = EvaluateSettings.model_validate({"engine_runtime": {"data_parallel": 4}})

    found = forecast(tmp_path, evaluate.named("evaluate_sft"), settings, given(), held_out)

    answers = 64 * (30 + 30 + 30) + 8 * (374 + 131)
    assert found.tokens == answers * 10_000
    assert found.seconds == pytest.approx(2 * QWEN * found.tokens / (4 * PEAK * 0.05))


def test_a_learning_curve_asks_every_kept_model_and_rl_writes_each(tmp_path):
    """Of 100 steps those of 10, 20, … 90 are kept beside the last."""
    learning = RLSettings(steps=100, keep_every=10)
    model = forecast(tmp_path, rl.named("rl_math"), learning, given(), given())
    plain = forecast(tmp_path, rl.named("rl_math"), RLSettings(steps=100), given(), given())
    assert model.counts["models_kept"] == 9
    assert model.bytes == pytest.approx(10 * (plain.bytes or 0))

    curve = {"learning_curve": {"k": 4, "benchmarks": ["aime24"]}}
    settings = EvaluateSettings.model_validate(curve)
    held_out = given(**{"kept/aime24": 30, "kept/livecodebench": 1055})
    found = forecast(
        tmp_path, evaluate.named("evaluate_rl_math"), settings, given(**model.counts), held_out
    )
    answers = 64 * 3 * 30 + 8 * (374 + 131)
    assert found.tokens == (answers + 9 * 4 * 30) * 10_000


def test_an_endpoint_is_as_fast_as_its_streams_and_costs_its_prices(tmp_path):
    problems = given(**{"kept": 100, "kept/a": 100})
    settings = teacher(concurrency=50, input_price=1.0, output_price=2.0)

    found = forecast(tmp_path, distill, settings, problems)

    tokens = 400 * 10_000
    assert found.tokens == tokens
    assert found.seconds == pytest.approx(tokens / (30 * 50))
    assert found.cost == pytest.approx((400 * 300 * 1.0 + tokens * 2.0) / 1e6)
    assert found.gpu_hours is None
    assert {"answer_tokens", "prompt_tokens", "stream_tokens_per_second"} <= set(found.assumptions)


def test_gpu_hours_cost_what_the_topology_says(tmp_path):
    priced = CLUSTER.model_copy(update={"gpu_hour_price": 2.5})
    data = given(kept=1000, answer_tokens=5000)
    found = forecast(tmp_path, sft, SFTSettings(), given(), data, on=priced)
    assert found.gpu_hours is not None
    assert found.cost == pytest.approx(2.5 * found.gpu_hours)


def test_a_measured_rate_replaces_the_flops_and_is_named(tmp_path):
    """Half the GPUs were measured: the plan's are twice as fast together."""
    publish(tmp_path, "base", settings=BaseModelSettings())
    settings = SFTSettings(batch_tokens=1000, checkpoint_steps=100)
    publish(
        tmp_path, "sft", settings=settings, metrics={"steps": 40}, seconds=10,
        hardware="4 × NVIDIA H100 80GB HBM3", inputs=(("base", "k"),), size=77,
    )  # fmt: skip

    found = forecast(tmp_path, sft, settings, given(), given(kept=1000, answer_tokens=5000))

    assert found.tokens == 4 * 1000 * 5300
    assert found.seconds == pytest.approx(found.tokens / (4000 * 2))
    assert found.bytes == 77


def test_lengths_come_from_earlier_results_where_there_are_any(tmp_path):
    publish(tmp_path, "base", settings=BaseModelSettings())
    publish(
        tmp_path, "rl_math", settings=RLSettings(), metrics={"rollout_steps": 2},
        inputs=(("base", "k"),), curve={"completions/mean_length": [600.0, 1000.0]},
    )  # fmt: skip

    found = forecast(tmp_path, rl.named("rl_math"), RLSettings(steps=10), given(), given())
    assert found.tokens == 10 * 128 * 8 * 800
    assert "answer_tokens" not in found.assumptions


def test_what_rests_on_an_assumption_upstream_stays_marked(tmp_path):
    publish(tmp_path, "judge", settings=JudgeStageSettings(), metrics={"scores": 100}, seconds=10)
    asked = forecast(tmp_path, distill, teacher(), given(**{"kept": 9, "kept/a": 9}))
    answers = given(**asked.counts)

    found = forecast(tmp_path, judge, JudgeStageSettings(), given(), answers)
    sure = forecast(tmp_path, judge, JudgeStageSettings(), given(), given(samples=36))

    assert answers.metrics["samples"] == 36
    assert (found.assumed, sure.assumed) == (True, False)


def test_nothing_is_guessed_on_a_machine_without_gpus(tmp_path):
    found = forecast(tmp_path, sft, SFTSettings(), given(), given(kept=10), on=Topology())
    assert found.seconds is None
