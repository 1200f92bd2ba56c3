"""The form of a stage: its settings, one field per input, and what the whole flow would pass."""

import pytest

from configs.loading import load_profile
from configs.settings.explain import ConfigError
from configs.settings.pipeline import STAGES
from flows.forms import stage_forms
from flows.forms.stage_forms import chosen_inputs, form, form_calls, values
from flows.stages import calls
from tasks.store.store import Store
from tests.tasks.manifests_by_hand import publish

LEFT_OUT = {"rate", "judge_rate", "agreement", "judge_agreement"}  # not in the tiny profile


def test_every_stage_of_the_form_profile_has_a_form_that_a_worker_finds_by_its_name():
    assert set(form_calls()) == set(STAGES) - LEFT_OUT
    assert stage_forms.stage_sft is form("sft")
    with pytest.raises(AttributeError):
        _ = stage_forms.stage_nonsense


@pytest.mark.parametrize("stage", ["collect", "sft", "rl_code", "evaluate_sft", "report"])
def test_what_a_form_begins_with_is_accepted_by_its_own_flow(stage: str):
    validated = form(stage).validate_parameters(values(stage))
    assert validated["settings"] == form_calls()[stage].settings


def test_the_fields_are_those_that_the_stage_takes_and_each_says_what_it_is():
    fields = form("sft").parameters.properties
    assert set(fields) == {"settings", "inputs", "seed", "force"}
    assert all(field.get("description") for field in fields.values())
    inputs = form("sft").parameters.definitions["Inputs"]["properties"]
    assert list(inputs) == ["base", "select"]
    assert "pattern" in inputs["base"]
    assert "inputs" not in form("collect").parameters.properties
    assert "seed" not in form("dedup").parameters.properties


def test_the_wiring_is_that_of_the_profile():
    tiny = calls(load_profile("tiny"))
    assert tiny["rl_math"].inputs == ("sft", "filter_rl")
    started = ["base.kind=pretrained", "base.model=m", "base.stands_for=sft"]
    assert calls(load_profile("tiny", started))["rl_math"].inputs == ("base", "filter_rl")


def test_an_input_is_the_latest_or_the_one_that_the_first_digits_of_its_key_name(tmp_path):
    newer = publish(tmp_path, "select", key="abcdef00", created="2026-01-02T00:00:00+00:00")
    older = publish(tmp_path, "select", key="abcdef11", created="2026-01-01T00:00:00+00:00")
    for key in (newer.key, older.key):
        (tmp_path / "select" / key / "rows").write_bytes(bytes(1000))

    def chosen(which: str) -> str:
        return chosen_inputs({"select": which}, Store(tmp_path))["select"].key

    assert chosen("latest") == newer.key
    assert chosen("abcdef1") == older.key
    with pytest.raises(ConfigError, match=r"inputs\.select: abcdef .*abcdef11, abcdef00"):
        chosen("abcdef")


@pytest.mark.parametrize("which", ["latest", "abcdef"])
def test_an_input_that_is_not_there_is_named(tmp_path, which: str):
    with pytest.raises(ConfigError, match=r"^inputs\.select: "):
        chosen_inputs({"select": which}, Store(tmp_path))
