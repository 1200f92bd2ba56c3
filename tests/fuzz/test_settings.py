"""Whatever is typed after --set or stands in a profile: settings, or what to fix."""

from pathlib import Path

import pytest
import yaml
from fuzz.strategies import SCRATCH, few, overrides, texts
from hypothesis import given
from hypothesis import strategies as st

from klear.configs.loading import load_profile, profiles
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline
from klear.flows.cli.main import main


@few
@given(st.lists(overrides, min_size=1, max_size=3))
def test_an_override_is_taken_or_explained(chosen: list[str]) -> None:
    problems = ["taken"]
    try:
        assert isinstance(load_profile("tiny", chosen), Pipeline)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.strip() for problem in problems)


@few
@given(texts)
def test_a_profile_of_any_text_is_explained(text: str) -> None:
    path = SCRATCH / "profile.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ConfigError):
        load_profile(str(path))


@pytest.mark.parametrize("name", profiles())
def test_a_profile_written_out_whole_is_the_same_profile(tmp_path: Path, name: str) -> None:
    loaded = load_profile(name)
    path = tmp_path / f"{loaded.profile}.yaml"
    path.write_text(yaml.safe_dump(loaded.model_dump(mode="json", exclude_unset=True)))
    assert load_profile(str(path)) == loaded


@pytest.mark.parametrize(
    "override",
    ["seed=2024-99-99", "seed=!!int x", "seed=!!timestamp a", "seed=!!set x", "seed=!!float x",
     f"seed={'9' * 5000}", f"seed={'[' * 3000}", "seed=&a [*a]", "sft=&a {x: *a}",
     "collect.sources.²=1", "seed=!!python/object/apply:os.system [x]", "data.root=[]"],
)  # fmt: skip
def test_odd_values_that_once_were_tracebacks_are_wrong_usage(override: str, capsys) -> None:
    """Found by fuzzing: PyYAML raises ValueError, AttributeError and RecursionError on these."""
    assert main(["plan", "tiny", "--set", override]) == 2
    said = capsys.readouterr().err.strip()
    assert said
    assert len(said) < 6_000
