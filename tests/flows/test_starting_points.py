"""Training starts from any model, and the stages before it leave the plan."""

import pytest

from configs.loading import load_profile
from configs.stage_names import STAGES
from flows.cli.plan import plan
from tasks.store.store import Store

FOR_SFT = {"distill", "judge", "difficulty", "select", "sft", "evaluate_sft"}


def planned(tmp_path, profile, **base):
    settings = load_profile(profile)
    start = settings.base.model_copy(update={"kind": "pretrained", **base})
    settings = settings.model_copy(update={"base": start})
    stages = plan(settings, Store(tmp_path))
    expected = [s for s in STAGES if s not in settings.stages_left_out]
    assert sorted(s.stage for s in stages) == sorted(expected)
    return {s.stage for s in stages}


@pytest.mark.parametrize("profile", ["tiny", "paper"])
@pytest.mark.parametrize(
    ("stands_for", "gone"),
    [("base", set()), ("sft", FOR_SFT), ("rl_math", FOR_SFT | {"rl_math", "evaluate_rl_math"})],
)
def test_the_stages_before_the_start_leave_the_plan(tmp_path, profile, stands_for, gone):
    everything = planned(tmp_path, profile, stands_for="base")
    model = "Kwai-Klear/Klear-Reasoner-8B-SFT"
    rating = {"rate", "judge_rate"} if stands_for != "base" else set()
    found = planned(tmp_path, profile, stands_for=stands_for, model=model)
    assert everything - found == (gone | rating) & everything
    assert {"base", "rl_code", "evaluate_base", "report"} <= found


def test_a_local_model_that_changes_is_another_start(tmp_path):
    from tasks.models.train import local_model

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    base = load_profile("paper").base.model_copy(update={"model": str(folder)})
    assert list(local_model(base)) == [folder / "config.json"]
    assert list(local_model(load_profile("paper").base)) == []
    assert list(local_model(load_profile("tiny").base)) == []
