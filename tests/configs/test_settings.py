"""Properties every settings class has."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from configs.base import Runtime, key_of
from configs.engines import EngineSettings
from configs.explain import ConfigError
from configs.judging import JudgeSettings, RewardSettings
from configs.load import load_profile
from configs.settings import Pipeline
from configs.stage_names import STAGES
from configs.training_stages import RLSettings, SFTSettings


def subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_class_is_frozen_and_forbids_unknown_keys() -> None:
    from configs.base import Settings

    classes = [c for c in subclasses(Settings) if c.__module__.startswith("configs.")]
    assert RLSettings in classes
    for each in classes:
        assert each.model_config.get("frozen"), each
        assert each.model_config.get("extra") == "forbid", each


def test_the_key_ignores_how_and_sees_what() -> None:
    plain = SFTSettings()
    threads = plain.runtime.model_copy(update={"threads": 7})
    assert key_of(plain.model_copy(update={"runtime": threads})) == key_of(plain)
    assert key_of(plain.model_copy(update={"epochs": 1.0})) != key_of(plain)


def test_the_key_ignores_runtime_at_any_depth() -> None:
    plain = RLSettings()
    judge = JudgeSettings.model_validate({"runtime": {"workers": 3}})
    assert key_of(plain.model_copy(update={"judge": judge})) == key_of(plain)


def test_runtime_is_only_ever_a_field_named_so() -> None:
    """`runtime` and `*_runtime` tell the reader that a change costs no recomputation."""
    models = [Pipeline, *(c for c in subclasses(BaseModel) if c.__module__.startswith("configs."))]
    for model in models:
        for name, field in model.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Runtime):
                assert name == "runtime" or name.endswith("_runtime"), f"{model.__name__}.{name}"


def test_the_code_stage_differs_from_the_math_stage_as_in_the_paper() -> None:
    fields = Pipeline.model_fields
    math, code = fields["rl_math"].default, fields["rl_code"].default
    assert (math.mini_batch_prompts, code.mini_batch_prompts) == (16, 32)  # §4.1
    assert (math.learning_rate, code.learning_rate) == (1e-6, 5e-7)  # §4.1


def test_an_answer_without_a_think_block_never_pays() -> None:
    with pytest.raises(ValidationError, match="would pay more than a wrong answer"):
        RewardSettings(unclosed_think=-0.5)
    with pytest.raises(ValidationError, match="less than or equal to 0"):
        RewardSettings(code_unclosed_think=0.5)


def test_mini_batches_divide_the_step() -> None:
    with pytest.raises(ValidationError, match="remainder 28"):
        RLSettings(prompts_per_step=128, mini_batch_prompts=50)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SFTSettings().epochs = 1.0  # type: ignore[misc]


def test_a_run_begins_with_collect_and_ends_with_the_report() -> None:
    assert (STAGES[0], STAGES[-1]) == ("collect", "report")
    assert len(set(STAGES)) == len(STAGES)


def test_a_profile_knows_which_stages_it_leaves_out() -> None:
    assert load_profile("tiny").stages_left_out == {
        "rate",
        "judge_rate",
        "agreement",
        "judge_agreement",
    }
    assert load_profile("replay").stages_left_out == {"rate", "judge_rate"}
    assert load_profile("paper").stages_left_out == {"agreement", "judge_agreement"}


def test_where_an_endpoint_is_and_who_pays_changes_no_key() -> None:
    here = EngineSettings(kind="openai", model="r1", base_url="http://127.0.0.1:1/v1")
    there = EngineSettings(
        kind="openai", model="r1", base_url="http://127.0.0.1:2/v1", served_model="x",
        api_key_env="MINE", api_key_block="ours",
    )  # fmt: skip
    assert key_of(here) == key_of(there)
    assert key_of(here) != key_of(there.model_copy(update={"model": "r2"}))


def test_a_stage_cannot_name_a_source_that_nobody_collects():
    with pytest.raises(ConfigError, match=r"'countdwn' is not collected; did you mean countdown\?"):
        load_profile("tiny", ["distill.sources=[countdwn]"])
    with pytest.raises(ConfigError, match=r"easy_sources: 'countdwn' is not collected"):
        load_profile("tiny", ["difficulty={rater: source, easy_sources: [countdwn]}"])
