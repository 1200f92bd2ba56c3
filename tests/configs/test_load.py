"""Profiles, layers, overrides, errors that name the key and the fix, and names of runs."""

from pathlib import Path

import pytest
import yaml

from klear.configs.loading import ConfigError, differences, load_profile, profiles, run_name
from klear.configs.settings.base import flat, meaning
from klear.configs.settings.loss import CISPO, GPPO

MINIMAL = """
profile: small
collect:
  sources:
    - {name: sums, kind: generated, family: countdown}
    - {name: deepscaler, kind: files, files: [deepscaler.jsonl]}
benchmarks: {}
distill: {engine: {kind: scripted}}
sample: {engine: {kind: recorded, files: [r1.jsonl, /far/r1.jsonl]}}
"""
ERRORS = yaml.safe_load(Path(__file__).with_name("override_errors.yaml").read_text())


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(MINIMAL)
    return str(path)


def problems(profile: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_profile(profile, overrides)
    return list(caught.value.problems)


def test_every_shipped_profile_loads_under_its_name():
    local, cards = {"tiny", "pocket", "replay", "open_traces"}, {"single_gpu", "single_gpu_8b"}
    assert {*local, *cards, "paper"} == set(profiles())
    assert [load_profile(name).profile for name in profiles()] == profiles()


def test_overrides_are_yaml_and_apply_in_order_to_what_they_name_alone(profile: str):
    loaded = load_profile(
        profile,
        ["seed=1", "seed=2", "rl_math.learning_rate=3e-6", "select.math_sources=[deepscaler]",
         "select.size=null", "dedup.near=true", "rl_code.steps=30", "rate.engine.kind=scripted",
         "collect.sources.0.size=10", "collect.sources.deepscaler.limit=5"],
    )  # fmt: skip
    assert (loaded.profile, loaded.seed, loaded.dedup.near) == ("small", 2, True)
    assert loaded.rl_math.learning_rate == 3e-6
    assert (loaded.select.math_sources, loaded.select.size) == (("deepscaler",), None)
    assert loaded.rate is not None
    assert [(s.size, s.limit) for s in loaded.collect.sources] == [(10, None), (100, 5)]
    assert loaded.sft.learning_rate == 8e-5  # §4.1: unset keys keep the paper's values
    code = loaded.rl_code  # of this stage too, where they are its own
    assert (code.steps, code.mini_batch_prompts, code.learning_rate) == (30, 32, 5e-7)


def test_an_alias_in_a_profile_is_a_copy(tmp_path: Path):
    replay = load_profile("replay", ["distill.samples_per_prompt=2"])
    assert (replay.distill.samples_per_prompt, replay.sample.samples_per_prompt) == (2, 1)
    path = tmp_path / "p.yaml"
    path.write_text(
        "extends: replay\n"
        "data: {root: DATA}\n"
        "distill: &same {engine: {kind: recorded, files: [a.jsonl]}}\n"
        "sample: *same\n"
    )
    loaded = load_profile(str(path))
    assert loaded.distill.engine.files == loaded.sample.engine.files == ("DATA/a.jsonl",)


def test_data_root_reaches_every_file_that_has_no_root_of_its_own(profile: str):
    loaded = load_profile(profile, ["data.root=/data", "benchmarks.root=/exams"])
    assert (loaded.collect.root, loaded.benchmarks.root) == ("/data", "/exams")
    assert loaded.sample.engine.files == ("/data/r1.jsonl", "/far/r1.jsonl")


def test_a_profile_changes_only_what_it_says_of_the_one_it_extends(profile: str, tmp_path: Path):
    Path(profile).write_text(MINIMAL + "sft: {epochs: 2, max_length: 64}\n")
    child = tmp_path / "child.yaml"
    child.write_text("extends: small.yaml\nsft: {epochs: 3}\n")
    loaded = load_profile(str(child))
    assert (loaded.sft.epochs, loaded.sft.max_length, loaded.profile) == (3, 64, "child")
    Path(profile).write_text("extends: child.yaml")
    assert problems(profile) == ["extends goes in a circle: small.yaml → child.yaml → small.yaml"]


def test_a_loss_is_a_name_or_a_group_and_another_one_begins_at_its_own_defaults(tmp_path: Path):
    (tmp_path / "named.yaml").write_text("extends: tiny\nrl_math: {loss: cispo}\n")
    path = tmp_path / "bounded.yaml"
    path.write_text("extends: named.yaml\nrl_math: {loss: {eps_low: 0.1}}\n")
    wider, other = "rl_math.loss.eps_high=4", "rl_math.loss=gppo"
    losses = [load_profile(str(path), o).rl_math.loss for o in ((), [wider], [wider, other])]
    assert losses == [CISPO(eps_low=0.1), CISPO(eps_low=0.1, eps_high=4), GPPO()]


def test_lists_of_a_profile_are_extended_as_well_as_replaced(profile: str, tmp_path: Path):
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: single_gpu\n"
        "collect: {sources+: [{name: mine, files: [mine.jsonl]}]}\n"
        "distill: {sources+: [mine]}\n"
        "benchmarks: {sources+: [{use: hmmt25, name: hmmt}]}\n"
        "evaluate: {protocols+: [{name: hmmt, k: 4}]}\n"
    )
    base, more = load_profile("single_gpu"), load_profile(str(child), ["rate.sources+=[mine]"])
    assert [s.name for s in more.collect.sources] == [
        *(s.name for s in base.collect.sources),
        "mine",
    ]
    assert more.distill.sources == (*base.distill.sources, "mine") == more.rate.sources  # type: ignore
    assert [p.name for p in more.evaluate.protocols] == ["aime24", "aime25", "lcb_v6", "hmmt"]
    paper = load_profile("paper", ["evaluate.protocols+=[{name: math500, k: 4}]"])  # a default
    assert [p.name for p in paper.evaluate.protocols][-2:] == ["lcb_v6", "math500"]
    assert problems(profile, "distill.sources+=[sums]") == [
        "distill.sources+: nothing to add to: the profile names none, which means all of them; "
        "write sources to take these alone"
    ]
    assert problems(profile, "collect.sources+=3")[0].startswith("sources+: 3 is no list")
    assert problems("tiny", "evaluate.protocols+=[{name: aime24}]") == [
        "evaluate.protocols.aime24: benchmarks.sources has no 'aime24'; add it by "
        "benchmarks: {sources+: [{use: aime24}]}, or name one in `source`"
    ]


def test_a_source_that_no_stage_takes_is_refused_with_the_lines_to_add(tmp_path: Path):
    child = tmp_path / "child.yaml"
    text = "extends: single_gpu\ncollect: {sources+: [{name: mine, files: [mine.jsonl]}]}\n"
    child.write_text(text)
    forgotten = problems(str(child))
    assert "no stage takes mine" in forgotten[0]
    assert forgotten[1:] == [
        "for SFT: distill: {sources+: [mine]}   rate: {sources+: [mine]}",
        "for RL: filter_tests: {sources+: [mine]}   sample: {sources+: [mine]}",
    ]
    for line in forgotten[1:]:  # as they stand, each stage on a line of its own
        child.write_text(text + "\n".join(line.partition(": ")[2].split("   ")))
        assert load_profile(str(child)).untrained == []
    child.write_text(text.replace("[mine.jsonl]", "[mine.jsonl], untrained: true"))
    assert load_profile(str(child)).untrained == []
    assert (
        "no stage takes x" in problems("tiny", "collect.sources+=[{name: x, files: [x.jsonl]}]")[0]
    )
    narrowed = load_profile("tiny", ["distill.sources=[countdown]"])  # on purpose
    assert narrowed.untrained == ["by_example"]


@pytest.mark.parametrize(("override", "line"), ERRORS.items())
def test_the_error_names_the_key_and_the_fix(profile: str, override: str, line: str):
    assert problems(profile, override)[0] == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (MINIMAL.replace("distill:", "rate:"), "distill: missing; it has no default"),
        ("sft: {epochs: [\n", "PATH:2: expected the node content, but found '<stream end>'"),
        ("seed: 1\nseed: 2\n",
         'PATH:2: found duplicate key "seed" with value "2" (original value: "1")'),
        ("- 3", "PATH: a profile is a mapping of keys, this is [3]"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_line_with_its_place(profile: str, text: str, line: str):
    Path(profile).write_text(text)
    assert problems(profile) == [line.replace("PATH", profile)]


def test_an_unknown_profile_lists_the_known_ones():
    (line,) = problems("tinny")
    assert "did you mean tiny?" in line
    assert all(name in line for name in profiles())
    assert problems("nowhere.yaml")[0].startswith("no profile is called 'nowhere.yaml' (there: ")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["seed=3", "dedup.near=true"], "dedup.near=true · tiny-seed3"),
        (["rl_math.learning_rate=2.5e-05"], "rl_math.learning_rate=2.5e-5 · tiny-seed0"),
        (["rl_math.loss.dual_clip=10"], "rl_math.loss.dual_clip=10 · tiny-seed0"),
        (
            ["rl_math.loss={name: sapo, temperature_pos: 2}"],
            "rl_math.loss=sapo, rl_math.loss.temperature_pos=2 · tiny-seed0",
        ),
        (["collect.sources.countdown.size=5"], "collect.sources.countdown.size=5 · tiny-seed0"),
        (["distill.sources=[countdown]"], 'distill.sources=["countdown"] · tiny-seed0'),
        (["sft.runtime.threads=2", "stall_minutes=5"], "tiny-seed0"),  # how, and not what
        (["evaluate.protocols=[{name: countdown_test, k: 8}]"],
         "evaluate.protocols.by_example_test=null · tiny-seed0"),
        (["sft.epochs=2", "rl_math.steps=3", "rl_code.steps=3", "rl_code.temperature=2"],
         "sft.epochs=2, rl_math.steps=3, rl_code.steps=3, and 1 more · tiny-seed0"),
    ],
)  # fmt: skip
def test_a_run_is_called_after_profile_seed_and_what_differs(overrides: list[str], name: str):
    assert run_name(load_profile("tiny", overrides)) == name


def test_a_profile_from_a_file_is_compared_with_itself_unless_the_file_is_given():
    changed = load_profile("tiny", ["profile=mine", "sft.epochs=2"])
    assert run_name(changed) == "mine-seed0"
    assert run_name(changed, load_profile("tiny")) == "sft.epochs=2 · mine-seed0"
    assert differences(changed, load_profile("tiny")) == [("sft.epochs", "2")]


@pytest.mark.parametrize("name", profiles())
def test_reasons_name_settings_as_manifests_and_profiles_write_them(name: str):
    settings = load_profile(name)
    written = flat(settings.model_dump(mode="json"))
    assert flat(meaning(settings)).items() <= written.items()
