"""`klear judge`: every row of a file and every line of a stream is answered, in order."""

import io
import json
import os
import re
import threading
from pathlib import Path

import pytest

from klear.configs.settings.explain import ConfigError
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge.files import judge_files, run_stream
from klear.eval.records import Score
from klear.flows.cli.main import main

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
PROBLEM = {"id": "a", "domain": "math", "prompt": "6*7?", "answer": "42"}
BAD_GOLD = {"id": "g", "domain": "math", "prompt": "?", "answer": r"\frac{"}


def sample(problem_id: str, text: str, index: int = 0, **more: object) -> dict[str, object]:
    return {"problem_id": problem_id, "index": index, "model": "m", "text": text, **more}


@pytest.fixture
def judged(tmp_path: Path):
    def run(problems: list[object], samples: list[object]) -> list[Score]:
        for name, rows in {"problems": problems, "samples": samples}.items():
            lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        out = tmp_path / "scores.jsonl"
        judge_files(tmp_path / "problems.jsonl", tmp_path / "samples.jsonl", out, SETTINGS)
        return [Score.model_validate_json(line) for line in out.read_text().splitlines()]

    return run


def test_an_id_of_0_is_one_and_what_thinks_in_the_tags_of_another_family_is_not_judged(judged):
    rows = [{"idx": i, "question": f"{i}*7?", "answer": str(i * 7)} for i in range(2)]
    foreign = r"<seed:think>perhaps \boxed{7}</seed:think> \boxed{8}"
    right, unread = judged(rows, [sample("0", r"\boxed{0}"), sample("1", foreign)])
    assert (right.verdict, unread.verdict) == ("AC", "IE")
    assert "it thinks in <seed:think>…</seed:think>" in unread.reason


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


@pytest.mark.parametrize("problems", [[], ["{"], [{**PROBLEM, "answer": None}]])
def test_without_a_problem_nothing_is_written(judged, tmp_path, problems):
    with pytest.raises(ConfigError, match="holds no problem"):
        judged(problems, [sample("a", r"\boxed{42}")])
    assert not list(tmp_path.glob("scores*"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (["{"], "delimiter|quotes"),
        (["[1]"], "list"),
        ([{**PROBLEM, "id": "b", "answer": None}], "needs an answer"),
        ([{**PROBLEM, "id": "b", "answer": ""}], "needs an answer"),
        ([{**PROBLEM, "id": "b", "anwser": "42"}], "anwser"),
        ([{**PROBLEM, "id": "b"}, {**PROBLEM, "id": "b", "answer": "43"}], "another problem"),
    ],
)
def test_a_bad_problem_is_named_and_the_others_judged(judged, tmp_path, capsys, bad, message):
    scores = judged([PROBLEM, *bad], [sample("b", r"\boxed{42}"), sample("a", r"\boxed{42}")])
    assert [score.verdict for score in scores] == ["IE", "AC"]
    files = [f"--problems={tmp_path}/problems.jsonl", f"--samples={tmp_path}/samples.jsonl"]
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample("a", r"\boxed{42}")))
    assert main(["judge", *files, f"--out={tmp_path}/again.jsonl"]) == 1
    errors = capsys.readouterr().err
    assert f"problems.jsonl:{len(bad) + 1}" in errors
    assert re.search(message, errors)
    if "b" in str(bad):
        assert "is rejected" in scores[0].reason


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


MATH = {"domain": "math", "prompt": "6*7?", "answer": "42"}
ONE = {"kind": "stdin", "cases": [{"input": "1 2", "output": "3"}]}
CODE = {"domain": "code", "prompt": "add", "tests": ONE}


def scores_of(*lines: str) -> list[Score]:
    out = io.StringIO()
    run_stream(lines, out, SETTINGS)
    return [Score.model_validate_json(line) for line in out.getvalue().splitlines()]


def line(problem: object, text: object, **more: object) -> str:
    return json.dumps({"problem": problem, "text": text, **more}) + "\n"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("not json", "Expecting value"),
        ("[1]", "expected"),
        ("[" * 100_000, "recursion"),
        (line(MATH, 7), "expected"),
        (line({"domain": "math", "prompt": "x"}, "t"), "needs an answer"),
        (line({**MATH, "anwser": "1"}, "t"), "anwser"),
        (line(MATH, "t", extra=1), "extra"),
        (line(MATH, "t", index="x"), "index"),
    ],
)
def test_a_malformed_line_is_answered_and_the_next_ones_judged(bad, reason):
    first, second = scores_of(bad, line(MATH, r"\boxed{42}", index=5))
    assert first.verdict == "IE"
    assert reason in first.reason
    assert (second.correct, second.index) == (True, 5)


def test_half_a_surrogate_pair_is_written_as_a_question_mark():
    """And the id of a problem that cannot be read is kept."""
    broken = {**MATH, "id": "\ud800"}
    first, second, third = scores_of(
        line(broken, "\\boxed{\ud800}"), line(broken, 7), line(CODE, "```python\nx = '\udfff'\n```")
    )
    assert (first.problem_id, first.answer, first.verdict) == ("?", "?", "WA")
    assert (second.problem_id, second.verdict) == ("?", "IE")
    assert third.verdict == "CE"


def test_the_first_answer_does_not_wait_for_the_end():
    read, write = os.pipe()
    answer_read, answer_write = os.pipe()
    with os.fdopen(read) as lines, os.fdopen(answer_write, "w") as out:
        worker = threading.Thread(target=run_stream, args=(lines, out, SETTINGS))
        worker.start()
        with os.fdopen(write, "w") as typing, os.fdopen(answer_read) as answers:
            for expected in ("42", "41"):
                typing.write(line(MATH, rf"\boxed{{{expected}}}"))
                typing.flush()
                assert json.loads(answers.readline())["answer"] == expected
            typing.close()
            worker.join()
