"""What cannot divide or fit is refused before a launch, with the numbers and what to change."""

import pytest

from configs.loading import load_profile
from configs.settings.pipeline import Pipeline
from training.sizing.fit import DoesNotFit, Fit, check, refuse


def fit_of(stage: str, *overrides: str, profile: str = "paper") -> Fit:
    return next(f for f in check(load_profile(profile, overrides)) if f.stage == stage)


@pytest.mark.parametrize("profile", ["tiny", "single_gpu", "paper", "replay"])
def test_the_shipped_profiles_run_on_the_machines_that_they_name(profile):
    refuse(load_profile(profile))


def test_every_gpu_stage_of_the_paper_shows_its_arithmetic():
    fits = {f.stage: f for f in check(load_profile("paper"))}

    assert list(fits) == ["rate", "sft", "rl_math", "rl_code", "evaluate"]
    assert fits["sft"].lines[0] == (
        "4,194,304 tokens a step = 128 × 32,768 over 32 GPUs = 4 rows of 32,768 each"
    )
    assert "16 prompts × 8 / 16 GPUs = 8 answers" in fits["rl_math"].lines[0]
    assert "147,456 B × 36,864 tokens = 5.1 GiB an answer" in fits["rate"].lines[0]


@pytest.mark.parametrize(
    ("stage", "overrides", "words"),
    [
        ("rl_math", ["topology.rl_gpus=0"], "16 prompts a mini-batch cannot be shared by 32 GPUs: "
         "set topology.rl_gpus=16"),
        ("sft", ["topology.nodes=3"], "128 rows a step are no multiple of 24 GPUs"),
        ("sft", ["sft.runtime.gradient_checkpointing=false"], "gradient_checkpointing=true"),
        ("sft", ["topology.sharding=none"], "topology.sharding=full"),
        ("sft", ["sft.lora={rank: 8}"], "lora trains under DDP: set topology.sharding=none"),
        ("sft", ["topology.gpu=L40S", "sft.runtime.micro_batch_tokens=147456"],
         "sft.runtime.micro_batch_tokens=32768"),
        ("rl_math", ["rl_math.engine_runtime.gpu_memory_utilization=0.95"],
         "rl_math.engine_runtime.gpu_memory_utilization=0.85 or less"),
        ("rl_math", ["rl_math.engine=vllm_server", "topology.rl_gpus=0"], "1 GPUs of its own"),
        ("rl_math", ["rl_math.engine=transformers", "topology.gpu_memory_gib=36"],
         "no room for whole weights"),
        ("rl_math", ["rl_math.engine_runtime.tensor_parallel=3"], "no multiple"),
        ("evaluate", ["evaluate.engine_runtime.data_parallel=16"], "16 GPUs, and a node has 8"),
        ("evaluate", ["evaluate.engine_runtime.tensor_parallel=5"], "32 attention heads"),
        ("rate", ["topology.gpu_memory_gib=24"], "no answer fits"),
    ],
)  # fmt: skip
def test_each_problem_names_its_cure(stage, overrides, words):
    problems = fit_of(stage, *overrides).problems
    assert any(words in p for p in problems), problems
    with pytest.raises(DoesNotFit, match=stage):
        refuse(load_profile("paper", overrides))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        # 16 GPUs are two nodes; 4 of a third serve
        ([], "4 of the 8 GPUs of a node behind the 2 that train; 12 of 32 GPUs idle"),
        (
            ["topology.rl_gpus=4", "topology.gpu=H200"],
            "4 + 4 of the 8 GPUs of the first node; 24 of 32 GPUs idle",
        ),
    ],
)
def test_the_gpus_of_a_stages_own_server_are_counted_beside_those_that_train(overrides, words):
    own = ["rl_math.engine=vllm_server", "rl_math.engine_runtime.data_parallel=4"]
    fit = fit_of("rl_math", *own, *overrides)
    assert not fit.problems
    assert any(words in line for line in fit.lines), fit.lines


def test_a_server_for_which_trainers_leave_no_gpu_is_refused():
    own = ["rl_math.engine=vllm_server", "topology.nodes=2"]
    assert "RL trains on 16 of 16 GPUs" in " ".join(fit_of("rl_math", *own).problems)
    six = ["topology.nodes=1", "topology.rl_gpus=4", "rl_math.engine_runtime.data_parallel=6"]
    assert "RL trains on 4 of 8 GPUs" in " ".join(fit_of("rl_math", *own, *six).problems)
    elsewhere = "rl_math.runtime.vllm_server_url=http://gpu-9:8000"
    assert not fit_of("rl_math", *own, elsewhere).problems


def test_only_the_stages_that_will_run_are_refused():
    settings = load_profile("paper", ["topology.rl_gpus=0"])
    refuse(settings, until="sft")
    with pytest.raises(DoesNotFit, match="rl_math"):
        refuse(settings, until="rl_math")


def test_a_model_of_unknown_size_is_said_to_be_unchecked():
    settings: Pipeline = load_profile("paper", ["base.model=somebody/unknown"])
    last = check(settings)[-1]
    assert last.lines == (
        "the sizes of somebody/unknown are not known here: its memory is not checked",
    )
    assert not last.problems


def test_gradients_wait_unsharded_only_where_micro_batches_do():
    assert "unreduced gradients 30.5" in fit_of("sft").lines[1]  # 4 bytes × 8.19e9
    one_each = fit_of("sft", "sft.batch_tokens=1048576").lines[1]  # 32 rows on 32 GPUs
    assert "unreduced" not in one_each
    assert "unreduced" not in fit_of("sft", profile="single_gpu").lines[1]


def test_lora_keeps_no_optimizer_of_the_frozen_weights():
    whole = fit_of("sft", profile="single_gpu").lines[1]
    adapters = fit_of("sft", "sft.lora={rank: 8}", profile="single_gpu").lines[1]
    assert "optimizer" in whole
    assert "optimizer" not in adapters
    assert "frozen weights 3.2" in adapters  # 2 bytes × 1.72e9
