"""A matrix of runs computes what its scores need, once, and no more; some beside each other."""

import os
import threading
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest

from klear.configs.ablation import ablations, load_ablation
from klear.configs.loading import load_profile
from klear.configs.settings.base import key_of
from klear.configs.settings.training import RLSettings
from klear.flows import ablation
from klear.flows.ablation import cells, plan_ablation
from klear.flows.dag import build_dag
from klear.flows.plan import assumptions, summary
from klear.tasks.engine.child import ChildFailed
from klear.tasks.models import train
from klear.tasks.observe.run_context import TrackedRun
from klear.tasks.store.store import Store
from klear.training.launch import run_job
from klear.training.launch.jobs import RLJob

TINY = load_profile("tiny")
TABLE6 = load_ablation("table6_lm_weight")


def test_a_learning_curve_is_asked_of_the_models_that_keep_some_alone():
    """It is part of a result's key: the scores of the others stay as they are."""
    changes = ["rl_math.keep_every=4", "evaluate.learning_curve={k: 2}"]
    before, after = build_dag(TINY), build_dag(load_profile("tiny", changes))
    scores = {name for name in before if name.startswith("evaluate_")}
    keys = [{n: key_of(graph[n].settings) for n in scores} for graph in (before, after)]
    assert {n for n in scores if keys[0][n] != keys[1][n]} == {"evaluate_rl_math"}
    assert len(scores) == 4


def test_cells_go_seed_by_seed_and_carry_their_seed():
    spec = load_ablation("fig3_reward")
    listed = [(arm, n, s.seed, s.rl_code.judge.reward.code) for arm, n, s in cells(spec, "tiny", 2)]
    arms = (("soft", "soft"), ("hard", "all_or_nothing"))
    assert listed == [(arm, seed, seed, reward) for seed in (0, 1) for arm, reward in arms]
    pilot = load_ablation("fig2_rates")
    assert sorted({seed for _, seed, _ in cells(pilot, "tiny")}) == [1000, 1001, 1002]


@pytest.mark.parametrize(("own", "used"), [(None, 3), (7, 7), (0, 0)])
def test_rl_draws_by_the_seed_of_its_settings_if_they_have_one(own, used, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "column", lambda rows, name: ["math"])
    jobs = list[RLJob]()
    monkeypatch.setattr(train, "run_launched", lambda job, *_: jobs.append(job) or {})
    artifact = SimpleNamespace(file=lambda name: tmp_path / name)
    settings = RLSettings(seed=own)
    train.rl.body(tmp_path, artifact, artifact, settings=settings, seed=3)
    assert [job.seed for job in jobs] == [used]


def test_what_arms_and_seeds_share_is_planned_once_and_says_who_shares_it(tmp_path):
    stages = plan_ablation(TABLE6, "tiny", 2, Store(tmp_path))
    counts = Counter(s.stage for s in stages)
    assert counts["sft"] == counts["benchmarks"] == 2  # one a seed, for four arms
    assert counts["rl_math"] == counts["evaluate_rl_math"] == 8
    assert counts["rl_code"] == 0
    sft = next(s for s in stages if s.stage == "sft")
    assert sft.why.startswith("shared by 4 runs from α=0-seed0")
    of_starts = load_ablation("fig2_power").model_copy(update={"starts": 2})
    stages = plan_ablation(of_starts, "tiny", 4, Store(tmp_path))
    counts = Counter(s.stage for s in stages)
    assert {counts[name] for name in ("collect", "select", "base", "sft")} == {2}
    assert counts["rl_math"] == counts["evaluate_rl_math"] == 3 * 4
    assert next(s for s in stages if s.stage == "sft").why.startswith("shared by 6 runs from gppo-")


SCALES = [(name, scale) for name in ablations() for scale in load_ablation(name).scales]


@pytest.mark.parametrize(("name", "profile"), SCALES)
def test_every_scale_of_every_experiment_plans(name, profile, tmp_path):
    spec = load_ablation(name)
    stages = plan_ablation(spec, profile, 1, Store(tmp_path))
    scored = [s for s in stages if s.stage == spec.scored]
    assert len(scored) == len(spec.arms)  # every arm trains a model of its own
    assert all(s.action == "compute" for s in stages)
    on_gpus = profile != "tiny"
    assert all(bool(s.gpu_hours) == on_gpus for s in scored)
    assert (" GPU-hours" in summary(stages)) == on_gpus
    assert not stages.problems


def test_an_experiment_plans_by_the_assumptions_and_machines_of_its_profile(tmp_path):
    """An arm that gives vLLM another share of the memory has an arithmetic of its own."""
    smaller = {"topology.gpu": "L40S", "topology.assume.train_mfu": 0.2}
    more = {"α=0": {"rl_math.engine_runtime.gpu_memory_utilization": 0.7}}
    small = TABLE6.scales["paper"].model_copy(update={"set": smaller, "arms": more})
    spec = TABLE6.model_copy(update={"scales": {**TABLE6.scales, "paper": small}})
    planned = plan_ablation(spec, "paper", 1, Store(tmp_path))
    assert "train_mfu = 0.2" in [name for name, _ in assumptions(planned)]
    assert any("fit" in problem for problem in planned.problems)
    assert [fit.stage for fit in planned.fits].count("rl_math") == 2


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """`beside(concurrent)`: what stubs make of every cell of one seed, on four cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # so that it is as before when the test has ended
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    together = threading.Barrier(2)

    def cell(spec, arm, seed, settings, unchanged, parent):
        together.wait(60)
        if arm == os.environ.get("FAILS"):
            raise ChildFailed("no such model", 1)
        return f"{arm}-{seed}", os.environ["OMP_NUM_THREADS"], parent

    monkeypatch.setattr(ablation, "compute_cell", cell)
    run = TrackedRun(store=Store(tmp_path / "store"), run_id="parent")
    return partial(ablation.compute_beside, TABLE6, list(cells(TABLE6, "tiny", 1)), run, TINY)


def test_cells_are_computed_beside_each_other_each_on_its_share_of_the_cores(beside, monkeypatch):
    names = [f"{arm.name}-0" for arm in TABLE6.arms]
    assert beside(2) == [(name, "2", "parent") for name in names]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # somebody's own choice
    assert beside(2) == [(name, "5", "parent") for name in names]


def test_a_cell_that_fails_is_named_with_its_reason(beside, monkeypatch):
    monkeypatch.setenv("FAILS", "α=0.05")
    with pytest.raises(RuntimeError, match=r"α=0.05-seed0 failed: no such model"):
        beside(2)


@pytest.mark.parametrize(("variable", "threads"), [("1", []), ("", [3])])
def test_a_child_trains_with_the_threads_it_is_given_or_one_a_core(monkeypatch, variable, threads):
    chosen = list[int]()
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    run_job._limit_threads(0)
    assert chosen == threads
