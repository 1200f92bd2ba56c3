"""The shipped experiments: every arm is a valid run, and arms differ in what they name alone."""

from functools import cache

import pytest

from klear.configs.ablation import FOLDER, Ablation, ablations, load_ablation
from klear.configs.loading import differences
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline

SHIPPED = [(name, profile) for name in ablations() for profile in load_ablation(name).scales]
PAPER_SHOWS = {
    "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Figure 2", "Figure 3", "Figure 4",
    "Figure 5",
}  # fmt: skip


def test_every_table_and_figure_of_the_analysis_has_an_experiment():
    assert {load_ablation(name).shows for name in ablations()} >= PAPER_SHOWS


@cache
def runs_of(name: str, profile: str) -> list[Pipeline]:
    """Of every arm."""
    spec = load_ablation(name)
    return [spec.settings(profile, arm.name, seed=3) for arm in spec.arms]


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_arms_are_valid_runs_that_differ_in_the_settings_that_they_name_alone(name, profile):
    spec = load_ablation(name)
    scale, runs = spec.scale(profile), runs_of(name, profile)
    named = {key for arm in spec.arms for key in (*arm.set, *scale.arms.get(arm.name, {}))}
    for run in runs:
        assert run.seed == 3
        assert set(scale.benchmarks) <= {p.name for p in run.evaluate.protocols}
        assert spec.scored not in run.stages_left_out
    for other in runs[1:]:
        changed = {path for path, _ in differences(other, runs[0])}
        assert changed
        assert all(any(path.startswith(n) or n.startswith(path) for n in named) for path in changed)


def test_steadiness_without_a_learning_curve_is_refused_before_anything_is_computed():
    spec = load_ablation("fig5_zero_advantage")
    fields = spec.model_dump()
    fields["scales"]["tiny"]["set"] = {}
    with pytest.raises(ConfigError, match="steadiness on countdown_test needs its curve: set rl_m"):
        Ablation.model_validate(fields).settings("tiny", "filtered", 0)


def trained_on(profile: str, name: str, arm: str) -> set[str]:
    """Sources whose answers the mixture of an arm may hold."""
    settings = load_ablation(name).settings(profile, arm, seed=0)
    mixture, domain = settings.select, {s.name: s.domain for s in settings.collect.sources}
    ranked = {"math": mixture.math_sources, "code": mixture.code_sources}
    return {s for s in settings.distill.sources if s in ranked[domain[s]][: mixture.top_k_sources]}


def test_no_two_experiments_are_one_at_any_scale():
    """Tables 4 and 5 once cut math and code alike at the paper's scale."""
    experiments: list[tuple[str, str, set[str]]] = []
    for name, profile in SHIPPED:
        arms = {run.model_dump_json() for run in runs_of(name, profile)}
        experiment = profile, load_ablation(name).scored, arms
        assert experiment not in experiments, name
        experiments.append(experiment)


def test_the_tables_of_sources_add_sources_of_one_domain():
    for domain, name in (("math", "table4_math_sources"), ("code", "table5_code_sources")):
        for profile in ("paper", "tiny"):
            one, two, four = (trained_on(profile, name, arm) for arm in ("top1", "top2", "top4"))
            sources = load_ablation(name).settings(profile, "top4", 0).collect.sources
            assert one < two < four
            assert {s.domain for s in sources if s.name in four} == {domain}


def test_an_unknown_experiment_profile_or_arm_is_one_line():
    with pytest.raises(ConfigError, match="did you mean table6_lm_weight"):
        load_ablation("table6_lm_wieght")
    with pytest.raises(ConfigError, match=r"no ablation is called 'mine\.yaml'"):
        load_ablation("mine.yaml")
    spec = load_ablation("table6_lm_weight")
    with pytest.raises(ConfigError, match="not described for 'replay'"):
        spec.settings("replay", "α=0", 0)
    contrast = {"better": "α=1", "than": ["α=0"], "says": "."}
    outside = [{**c.model_dump(), "part_of_claim": False} for c in spec.contrasts]
    for contrasts, says in (
        ([contrast], "no arm is called 'α=1'"), (outside, "no contrast is part of the claim")
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            Ablation.model_validate(spec.model_dump() | {"contrasts": contrasts})


def test_runs_that_share_starts_differ_in_the_seed_of_the_scored_stage():
    fields = load_ablation("fig2_power").model_dump() | {"starts": 4}
    shared = Ablation.model_validate(fields)
    runs = [shared.settings("tiny", "gppo", seed) for seed in (2, 6, 1000)]
    seeds = [(run.seed, run.rl_math.seed, run.rl_code.seed) for run in runs]
    assert seeds == [(2, 2, None), (2, 6, None), (0, 1000, None)]
    own = Ablation.model_validate(fields | {"starts": None}).settings("tiny", "gppo", 6)
    assert (own.seed, own.rl_math.seed) == (6, None)
    of_sft = load_ablation("table3_teacher").model_dump()
    with pytest.raises(ValueError, match="starts=4 shares SFT, which scored=sft compares"):
        Ablation.model_validate(of_sft | {"starts": 4})


def test_a_pilot_has_seeds_that_its_experiment_does_not_see_and_the_same_settings():
    pilot, experiment = load_ablation("fig2_rates"), load_ablation("fig2_power")
    seen = set(range(experiment.first_seed, experiment.first_seed + experiment.seeds))
    assert not seen & set(range(pilot.first_seed, pilot.first_seed + pilot.seeds))
    assert pilot.contrasts == ()
    assert pilot.scale("tiny").set == experiment.scale("tiny").set


def test_a_control_is_an_arm_that_a_contrast_compares_with():
    spec = load_ablation("docs/examples/random_reward.yaml")
    assert spec.settings("tiny", spec.control, 0).rl_math.random_reward == 0.5
    shipped = load_ablation("table6_lm_weight").model_dump()
    for control, says in (
        ("α=1", "no arm is called 'α=1'"), ("α=0.1", "no contrast compares with control='α=0.1': ")
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            Ablation.model_validate(shipped | {"control": control})


def test_a_file_of_ones_own_has_a_name_that_a_stage_may_have(tmp_path):
    """Else nobody is told before the last stage, hours later."""
    shipped = (FOLDER / "table6_lm_weight.yaml").read_text()
    (tmp_path / "mine-2.yaml").write_text(shipped)
    assert load_ablation(str(tmp_path / "mine-2.yaml")).name == "mine-2"
    for name in ("my table.yaml", "α.yaml"):
        (tmp_path / name).write_text(shipped)
        with pytest.raises(ConfigError, match=r"name: .* should match pattern"):
            load_ablation(str(tmp_path / name))
