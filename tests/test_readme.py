"""The examples of the README work as they stand there."""

import re
from pathlib import Path

import pytest

from configs.loading import load_profile
from configs.settings.judging import JudgeSettings
from eval.judge.files import judge_files

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def readme() -> str:
    return README.read_text()


def test_the_profile_is_one(readme: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", readme, re.S)
    (tmp_path / "mine.yaml").write_text(example)

    profile = load_profile(str(tmp_path / "mine.yaml"))

    assert profile.collect.sources[0].name == "mine"
    assert profile.distill.engine.runtime.approve_above == 50
    assert profile.base.model == load_profile("single_gpu").base.model


def test_the_answers_are_judged_right(readme: str, tmp_path: Path) -> None:
    for name, key in (("P", "id"), ("S", "problem_id")):
        lines = re.findall(rf'^{{"{key}": .*$', readme, re.M)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))

    verdicts = judge_files(
        tmp_path / "P.jsonl", tmp_path / "S.jsonl", tmp_path / "scores.jsonl", JudgeSettings()
    )

    assert verdicts == {"AC": 2}
