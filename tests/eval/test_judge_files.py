"""`klear judge --problems … --samples … --out …`: every row is answered, in whole files only."""

import json
from pathlib import Path

import pytest

from configs.settings.explain import ConfigError
from configs.settings.judging import JudgeRuntime, JudgeSettings
from eval.judge.files import judge_files
from eval.records import Score
from flows.cli.main import main

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
PROBLEM = {"id": "a", "domain": "math", "prompt": "6*7?", "answer": "42"}
BAD_GOLD = {"id": "g", "domain": "math", "prompt": "?", "answer": r"\frac{"}


def sample(problem_id: str, text: str, index: int = 0, **more: object) -> dict[str, object]:
    return {"problem_id": problem_id, "index": index, "model": "m", "text": text, **more}


@pytest.fixture
def judged(tmp_path: Path):
    def run(problems: list[object], samples: list[object]) -> list[Score]:
        files = {"problems": problems, "samples": samples}
        for name, rows in files.items():
            lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
            (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        out = tmp_path / "scores.jsonl"
        judge_files(tmp_path / "problems.jsonl", tmp_path / "samples.jsonl", out, SETTINGS)
        return [Score.model_validate_json(line) for line in out.read_text().splitlines()]

    return run


def test_every_row_gets_its_score_in_order(judged):
    scores = judged(
        [PROBLEM, BAD_GOLD],
        [
            "{not json",
            sample("a", r"\boxed{42}", 5),
            sample("other", r"\boxed{42}", 1),
            sample("g", r"\boxed{7}"),
            {"problem_id": "a"},
            sample("a", "x" * 3_000_000 + r"\boxed{41}"),
            sample("a", "", finish_reason="error"),
            [1],
        ],
    )
    assert [s.verdict for s in scores] == ["IE", "AC", "IE", "IE", "IE", "WA", "IE", "IE"]
    assert (scores[1].problem_id, scores[1].index) == ("a", 5)
    reasons = {0: "samples.jsonl:1", 2: "'other'", 3: "gold", 4: "index", 6: "engine", 7: "list"}
    for number, words in reasons.items():
        assert words in scores[number].reason


def test_no_samples_are_no_scores(judged):
    assert judged([PROBLEM], []) == []


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([], "holds no problem"),
        (["{"], "problems.jsonl:1"),
        ([PROBLEM, {**PROBLEM, "answer": None}], "problems.jsonl:2"),
        ([PROBLEM, {**PROBLEM, "answer": "43"}], "another problem has the id 'a'"),
    ],
)
def test_a_bad_problem_stops_before_anything_is_written(judged, tmp_path, problems, message):
    with pytest.raises(ConfigError, match=message):
        judged(problems, [sample("a", r"\boxed{42}")])
    assert not list(tmp_path.glob("scores*"))


def test_the_command_says_what_it_found_and_exits_with_it(judged, tmp_path, capsys):
    judged([PROBLEM], [sample("a", r"\boxed{42}")])
    files = [f"--problems={tmp_path}/problems.jsonl", f"--samples={tmp_path}/samples.jsonl"]
    assert main(["judge", *files, f"--out={tmp_path}/again.jsonl"]) == 0
    assert "1 answers judged: AC 1" in capsys.readouterr().err
    (tmp_path / "samples.jsonl").write_text("{\n")
    assert main(["judge", *files, f"--out={tmp_path}/again.jsonl"]) == 1
    assert "1 could not be judged" in capsys.readouterr().err
    assert main(["judge", *files, f"--out={tmp_path}/none/again.jsonl"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["judge"], ["judge", "--problems=p.jsonl"], ["judge", "--stream", "--out=o.jsonl"]]
)
def test_files_or_a_stream_and_not_both(argv):
    assert main(argv) == 2
