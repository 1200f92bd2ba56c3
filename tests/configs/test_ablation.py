"""The shipped experiments: every arm is a valid run, and arms differ in what they name alone."""

import pytest

from configs.ablation import FOLDER, Ablation, ablations, load_ablation
from configs.differences import differences
from configs.explain import ConfigError

SHIPPED = [(name, profile) for name in ablations() for profile in load_ablation(name).scales]
PAPER_SHOWS = {
    "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Figure 2", "Figure 3", "Figure 4",
    "Figure 5",
}  # fmt: skip


def test_every_table_and_figure_of_the_analysis_has_an_experiment():
    assert {load_ablation(name).shows for name in ablations()} == PAPER_SHOWS


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_every_arm_is_a_valid_run_with_the_benchmarks_that_decide(name, profile):
    spec = load_ablation(name)
    for arm in spec.arms:
        settings = spec.settings(profile, arm.name, seed=3)
        assert settings.seed == 3
        assert set(spec.scale(profile).benchmarks) <= {p.name for p in settings.evaluate.protocols}
        assert spec.scored not in settings.stages_left_out


@pytest.mark.parametrize(("name", "profile"), SHIPPED)
def test_arms_differ_in_the_settings_that_they_name_and_in_nothing_else(name, profile):
    spec = load_ablation(name)
    first, *others = (spec.settings(profile, arm.name, seed=0) for arm in spec.arms)
    named = {
        key for arm in spec.arms for key in (*arm.set, *spec.scale(profile).arms.get(arm.name, {}))
    }
    for other in others:
        changed = {path for path, _ in differences(other, first)}
        assert changed
        assert all(any(path.startswith(n) or n.startswith(path) for n in named) for path in changed)


def test_an_unknown_experiment_profile_or_arm_is_one_line():
    with pytest.raises(ConfigError, match="did you mean table6_lm_weight"):
        load_ablation("table6_lm_wieght")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: no such file$"):
        load_ablation("mine.yaml")
    spec = load_ablation("table6_lm_weight")
    with pytest.raises(ConfigError, match="not described for 'replay'"):
        spec.settings("replay", "α=0", 0)
    with pytest.raises(ValueError, match="no arm is called 'α=1'"):
        Ablation.model_validate(
            spec.model_dump() | {"contrasts": [{"better": "α=1", "than": ["α=0"], "says": "."}]}
        )


def test_a_file_of_ones_own_has_a_name_that_a_stage_may_have(tmp_path):
    """Else nobody is told before the last stage, hours later."""
    shipped = (FOLDER / "table6_lm_weight.yaml").read_text()
    (tmp_path / "mine-2.yaml").write_text(shipped)
    assert load_ablation(str(tmp_path / "mine-2.yaml")).name == "mine-2"
    for name in ("my table.yaml", "α.yaml"):
        (tmp_path / name).write_text(shipped)
        with pytest.raises(ConfigError, match=f"{name}: give the file a name of"):
            load_ablation(str(tmp_path / name))
