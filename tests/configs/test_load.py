"""Profiles, layers, overrides, and errors that name the key and the fix."""

from pathlib import Path

import pytest

from configs.judging import JudgeSettings
from configs.load import ConfigError, load_group, load_profile, profiles

MINIMAL = """
collect:
  sources:
    - {name: sums, kind: generated, family: countdown}
    - {name: deepscaler, kind: files, files: [deepscaler.jsonl]}
benchmarks: {}
distill: {engine: {kind: scripted}}
sample: {engine: {kind: recorded, files: [r1.jsonl, /far/r1.jsonl]}}
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(MINIMAL)
    return str(path)


def problems(profile: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_profile(profile, overrides)
    return list(caught.value.problems)


def test_the_profile_is_called_as_its_file(profile: str) -> None:
    assert load_profile(profile).profile == "small"


def test_unset_keys_keep_the_papers_values(profile: str) -> None:
    assert load_profile(profile).sft.learning_rate == 8e-5  # §4.1


def test_one_key_of_a_stage_leaves_that_stages_other_defaults(profile: str) -> None:
    rl_code = load_profile(profile, ["rl_code.steps=3"]).rl_code
    assert (rl_code.steps, rl_code.mini_batch_prompts, rl_code.learning_rate) == (3, 32, 5e-7)


def test_overrides_apply_in_order(profile: str) -> None:
    assert load_profile(profile, ["seed=1", "seed=2"]).seed == 2


def test_numbers_that_yaml_reads_as_text_are_numbers(profile: str) -> None:
    assert load_profile(profile, ["rl_math.learning_rate=3e-6"]).rl_math.learning_rate == 3e-6


def test_list_entries_are_named_by_index_or_name(profile: str) -> None:
    sources = load_profile(
        profile, ["collect.sources.0.size=10", "collect.sources.deepscaler.limit=5"]
    ).collect.sources
    assert (sources[0].size, sources[1].limit) == (10, 5)


def test_values_are_yaml(profile: str) -> None:
    loaded = load_profile(
        profile, ["select.math_sources=[a, b]", "dedup.near=true", "select.size=null"]
    )
    assert loaded.select.math_sources == ("a", "b")
    assert loaded.dedup.near is True
    assert loaded.select.size is None


def test_an_optional_stage_can_be_set_key_by_key(profile: str) -> None:
    rate = load_profile(profile, ["rate.engine.kind=scripted", "rate.samples_per_prompt=4"]).rate
    assert rate is not None
    assert rate.samples_per_prompt == 4


def test_data_root_reaches_every_relative_file(profile: str) -> None:
    loaded = load_profile(profile, ["data.root=/data"])
    assert loaded.collect.root == "/data"
    assert loaded.benchmarks.root == "/data"
    assert loaded.sample.engine.files == ("/data/r1.jsonl", "/far/r1.jsonl")


def test_a_root_of_its_own_wins_over_data_root(profile: str) -> None:
    loaded = load_profile(profile, ["data.root=/data", "benchmarks.root=/exams"])
    assert (loaded.collect.root, loaded.benchmarks.root) == ("/data", "/exams")


def test_a_profile_changes_only_what_it_says_of_the_one_it_extends(
    profile: str, tmp_path: Path
) -> None:
    Path(profile).write_text(MINIMAL + "sft: {epochs: 2, max_length: 64}\nprofile: renamed\n")
    child = tmp_path / "child.yaml"
    child.write_text("extends: small.yaml\nsft: {epochs: 3}\n")
    loaded = load_profile(str(child))
    assert (loaded.sft.epochs, loaded.sft.max_length) == (3, 64)
    assert loaded.profile == "child"


def test_a_circle_of_profiles_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    assert problems(str(tmp_path / "a.yaml")) == [
        "extends goes in a circle: a.yaml → b.yaml → a.yaml"
    ]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sft.learning_rat=1", "sft.learning_rat: unknown key; did you mean sft.learning_rate?"),
        ("distil.engine.model=x", "distil: unknown key; did you mean distill?"),
        (
            "collect.sources.0.siz=3",
            "collect.sources.0.siz: unknown key; did you mean collect.sources.0.size?",
        ),
        ("min_tests=3", "min_tests: unknown key; did you mean filter_tests.min_tests?"),
        ("sft.epochs=four", "sft.epochs: 'four' is no number"),
        ("sft.max_length=1.5", "sft.max_length: 1.5 is no whole number"),
        ("dedup.near=maybe", "dedup.near: 'maybe' is no yes or no (write true or false)"),
        ("base.model=7", "base.model: 7 is no text (put it in quotes)"),
        ("sft.epochs=", "sft.epochs: nothing is given"),
        ("sft=3", "sft: 3 is no group of settings"),
        ("select.math_sources=a", "select.math_sources: 'a' is no list"),
        ("rl_math.steps=0", "rl_math.steps: 0 must be above 0"),
        ("decontaminate.n=33", "decontaminate.n: 33 must be at most 32"),
        (
            "rl_math.loss=gpp",
            "rl_math.loss: 'gpp' is none of gppo, clip_higher, grpo, cispo; did you mean gppo?",
        ),
        (
            "rl_math.prompts_per_step=100",
            "rl_math: prompts_per_step=100 is no multiple of mini_batch_prompts=16 (remainder 4); "
            "choose numbers that divide",
        ),
        (
            "collect.sources.deepscalr.limit=5",
            "collect.sources.deepscalr: no such entry; did you mean deepscaler? "
            "(0 to 1 or sums, deepscaler)",
        ),
        ("evaluate.protocols.0.k=4", "evaluate.protocols.0: no such entry; the list is empty"),
        (
            "rl_math.keep_every=500",
            "rl_math.keep_every=500 keeps no model before the last of rl_math.steps=100: "
            "choose a smaller one, or 0",
        ),
        (
            "evaluate.learning_curve={k: 2}",
            "evaluate.learning_curve scores models that RL keeps along the way, and it keeps none: "
            "set rl_math.keep_every or rl_code.keep_every",
        ),
        ("profile.x.y=1", "profile: the value 'small', so there is no profile.x.y"),
        ("sft.epochs", "--set sft.epochs: write --set key.key=value"),
        ("data.rot=/d", "data.rot: unknown key; did you mean data.root?"),
    ],
)
def test_the_error_names_the_key_and_the_fix(profile: str, override: str, line: str) -> None:
    Path(profile).write_text(MINIMAL + "profile: small\n")
    assert line in problems(profile, override)


def test_all_problems_come_at_once(profile: str) -> None:
    found = problems(profile, "sft.epochs=four", "sft.learning_rat=1", "oops", "rl_code.steps=-1")
    assert [line.split(":")[0] for line in found] == [
        "--set oops", "sft.epochs", "sft.learning_rat", "rl_code.steps",
    ]  # fmt: skip


def test_a_missing_stage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.yaml"
    path.write_text(MINIMAL.replace("distill:", "rate:"))
    assert problems(str(path)) == ["distill: missing; it has no default"]


def test_broken_yaml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("seed: 1\nsft: {epochs: [\n")
    (line,) = problems(str(path))
    assert line.startswith(f"{path}:")
    assert "\n" not in line


def test_the_same_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("seed: 1\nseed: 2\n")
    assert problems(str(path)) == [f"{path}:1: the key 'seed' stands here twice"]


def test_an_unknown_profile_lists_the_known_ones() -> None:
    (line,) = problems("tinny")
    assert "did you mean tiny?" in line
    assert all(name in line for name in profiles())


def test_a_missing_file_is_named() -> None:
    assert problems("nowhere.yaml") == ["nowhere.yaml: no such file"]


def test_a_single_group_takes_overrides_too() -> None:
    assert load_group(JudgeSettings, ["reward.code=klear-code"]).reward.code == "klear-code"
    with pytest.raises(ConfigError, match="did you mean sandbox"):
        load_group(JudgeSettings, ["sandbx=none"])


def test_the_three_profiles_ship() -> None:
    assert {"tiny", "single_gpu", "paper"} <= set(profiles())


def test_every_shipped_profile_loads() -> None:
    for name in profiles():
        assert load_profile(name).profile


def test_stages_that_share_a_yaml_alias_get_the_root_once_each(tmp_path):
    profile = tmp_path / "p.yaml"
    profile.write_text(
        "extends: replay\n"
        "data: {root: DATA}\n"
        "distill: &same {engine: {kind: recorded, files: [a.jsonl]}}\n"
        "sample: *same\n"
    )
    settings = load_profile(str(profile))
    assert settings.distill.engine.files == settings.sample.engine.files == ("DATA/a.jsonl",)
