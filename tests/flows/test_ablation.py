"""A matrix of runs computes what its scores need, once, and no more."""

from collections import Counter

import pytest

from configs.ablation import ablations, load_ablation
from configs.load import load_profile
from flows.ablation import plan_ablation
from flows.ablation_cell import cells, needed
from flows.wiring import calls
from tasks.store import Store

TINY = load_profile("tiny")


def test_a_score_after_sft_needs_no_reinforcement_learning():
    stages = [call.stage.name for call in needed("evaluate_sft", calls(TINY))]
    assert stages[-2:] == ["sft", "evaluate_sft"]
    assert not {"rl_math", "sample", "filter_rl", "evaluate_base", "report"} & set(stages)


def test_what_is_needed_comes_after_what_it_is_made_from():
    graph = calls(TINY)
    seen: set[str] = set()
    for call in needed("evaluate_rl_code", graph):
        assert set(call.inputs) <= seen
        seen.add(call.stage.name)


def test_cells_go_seed_by_seed_and_carry_their_seed():
    spec = load_ablation("fig3_reward")
    found = [
        (arm, seed, s.seed, s.rl_code.judge.reward.code) for arm, seed, s in cells(spec, "tiny", 2)
    ]
    assert found == [
        (arm, seed, seed, arm) for seed in (0, 1) for arm in ("soft", "hard")
    ]  # the arms are called after their reward


def test_the_plan_names_a_shared_stage_once_and_says_who_shares_it(tmp_path):
    spec = load_ablation("table6_lm_weight")
    stages = plan_ablation(spec, "tiny", 2, Store(tmp_path))
    counts = Counter(s.stage for s in stages)
    assert counts["sft"] == 2  # one a seed, for four arms
    assert counts["rl_math"] == counts["evaluate_rl_math"] == 8
    assert counts["rl_code"] == 0
    sft = next(s for s in stages if s.stage == "sft")
    assert sft.why.startswith("shared by 4 runs from α=0-seed0")
    assert sum(s.stage == "benchmarks" for s in stages) == 2


@pytest.mark.parametrize("name", ablations())
def test_the_paper_profile_of_every_experiment_plans_in_gpu_hours(name, tmp_path):
    spec = load_ablation(name)
    stages = plan_ablation(spec, "paper", 1, Store(tmp_path))
    scored = [s for s in stages if s.stage == spec.scored]
    assert len(scored) == len(spec.arms)  # every arm trains a model of its own
    assert all(s.gpu_hours for s in scored)
    assert all(s.action == "compute" for s in stages)
