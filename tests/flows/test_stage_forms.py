"""The form of a stage: its settings, one field per input, and what the whole flow would pass."""

from pathlib import Path

import pytest

from configs.loading import load_profile
from configs.settings.explain import ConfigError
from configs.stage_names import STAGES
from eval.records import Problem
from eval.tables import write_table
from flows.forms import stage_forms
from flows.forms.inputs import chosen_inputs
from flows.forms.stage_forms import form, form_calls, values
from flows.stages import calls
from tasks.store.store import Store

LEFT_OUT = {"rate", "judge_rate", "agreement", "judge_agreement"}  # not in the tiny profile


def test_every_stage_of_the_form_profile_has_a_form():
    assert set(form_calls()) == set(STAGES) - LEFT_OUT


@pytest.mark.parametrize("stage", ["collect", "sft", "rl_code", "evaluate_sft", "report"])
def test_what_a_form_begins_with_is_accepted_by_its_own_flow(stage: str):
    validated = form(stage).validate_parameters(values(stage))
    assert validated["settings"] == form_calls()[stage].settings


def test_the_fields_are_those_that_the_stage_takes():
    assert set(form("sft").parameters.properties) == {
        "settings", "inputs", "seed", "profile", "force",
    }  # fmt: skip
    inputs = form("sft").parameters.definitions["Inputs"]["properties"]
    assert list(inputs) == ["base", "select"]
    assert "inputs" not in form("collect").parameters.properties
    assert "seed" not in form("dedup").parameters.properties
    assert "pattern" in inputs["base"]


def test_every_field_of_a_form_says_what_it_is():
    for name, field in form("rl_math").parameters.properties.items():
        assert field.get("description"), name


def test_a_worker_finds_the_flow_by_its_name_and_nothing_else():
    assert stage_forms.stage_sft is form("sft")
    with pytest.raises(AttributeError):
        _ = stage_forms.stage_nonsense


def test_the_wiring_is_that_of_the_profile():
    tiny = calls(load_profile("tiny"))
    assert tiny["rl_math"].inputs == ("sft", "filter_rl")
    started = ["base.kind=pretrained", "base.model=m", "base.stands_for=sft"]
    assert calls(load_profile("tiny", started))["rl_math"].inputs == ("base", "filter_rl")


def result(store: Store, stage: str, key: str, prompt: str, created: str) -> str:
    """Publishes one problem; returns the content digest."""
    work = store.work(stage, key)
    work.mkdir(parents=True)
    problem = Problem(domain="math", prompt=prompt, answer="1", source="s")  # type: ignore[call-arg]
    write_table(work / "kept.parquet", Problem, [problem])
    return store.publish(
        work, stage=stage, version=1, key=key, settings={}, seconds=1.0, pipeline_run="r",
        created=created,
    ).digest  # fmt: skip


class TestInputs:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store(tmp_path)

    def chosen(self, store: Store, which: str) -> str:
        (found,) = chosen_inputs({"select": which}, store, load_profile("tiny")).values()
        return found.key

    def test_latest_is_the_newest(self, store: Store):
        result(store, "select", "a" * 16, "one", "2026-01-02T00:00:00+00:00")
        result(store, "select", "b" * 16, "two", "2026-01-01T00:00:00+00:00")
        assert self.chosen(store, "latest") == "a" * 16

    def test_the_first_digits_of_a_key_or_of_a_digest_name_a_result(self, store: Store):
        result(store, "select", "a" * 16, "one", "2026-01-02T00:00:00+00:00")
        digest = result(store, "select", "b" * 16, "two", "2026-01-01T00:00:00+00:00")
        assert self.chosen(store, "bbbbbb") == "b" * 16
        assert self.chosen(store, digest[:8]) == "b" * 16

    def test_digits_of_several_results_are_refused_with_their_keys(self, store: Store):
        result(store, "select", "abcdef0000000000", "one", "2026-01-02T00:00:00+00:00")
        result(store, "select", "abcdef1111111111", "two", "2026-01-01T00:00:00+00:00")
        with pytest.raises(ConfigError, match=r"inputs\.select: abcdef .*0000.*1111"):
            self.chosen(store, "abcdef")

    @pytest.mark.parametrize("which", ["latest", "profile", "abcdef"])
    def test_what_is_not_there_is_named(self, store: Store, which: str):
        with pytest.raises(ConfigError, match=r"^inputs\.select: "):
            self.chosen(store, which)
