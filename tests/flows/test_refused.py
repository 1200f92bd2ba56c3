"""A run that is refused says in its name what was asked for and which field was wrong."""

from typing import Any

import pytest
from prefect.exceptions import ParameterTypeError

from flows.ablations.ablation import ablation
from flows.forms.refused import refused_name
from flows.forms.stage_forms import form, values
from flows.pipeline import pipeline


def refusal(flow: Any, asked: dict[str, Any]) -> str:
    """What Prefect says against these parameters."""
    with pytest.raises(ParameterTypeError) as refused:
        flow.validate_parameters(asked)
    return f"Validation of flow parameters failed with error: {refused.value}"


def test_a_pipeline_is_named_after_profile_seed_and_field():
    rl = values("rl_math")["settings"] | {"mini_batch_prompts": 3, "prompts_per_step": 8}
    asked = {"settings": {"profile": "tiny", "seed": 7, "rl_math": rl}}
    said = refusal(pipeline, asked | {"until": "nowhere"})
    assert refused_name(pipeline, asked, said).startswith("tiny-seed7 · refused: until, settings.")


def test_a_stage_is_named_too():
    asked = values("sft") | {"seed": 3}
    asked["settings"] = asked["settings"] | {"epochs": 0}
    name = refused_name(form("sft"), asked, refusal(form("sft"), asked))
    assert name == "tiny-seed3 · sft · refused: settings.epochs"


def test_an_ablation_too():
    asked = {"name": "table6_lm_weight", "profile": "tiny", "seeds": 0}
    name = refused_name(ablation, asked, refusal(ablation, asked))
    assert name == "tiny · refused: seeds"


def test_many_wrong_fields_are_not_all_in_the_name():
    said = "".join(f"\n - settings.field{i}: wrong" for i in range(9))
    name = refused_name(pipeline, {"settings": {"profile": "tiny"}}, said)
    assert name == "tiny · refused: settings.field0, settings.field1, settings.field2"


def test_settings_that_are_no_settings_at_all_have_a_name():
    assert refused_name(pipeline, {"settings": 3}, "\n - settings: wrong") == (
        "klear · refused: settings"
    )
