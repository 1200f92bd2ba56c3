"""`klear judge --stream`: one line in, one line out, at once, whatever the line."""

import io
import json
import os
import threading

import pytest

from configs.settings.judging import JudgeRuntime, JudgeSettings
from eval.judge.files import run_stream
from eval.records import Score

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
MATH = {"domain": "math", "prompt": "6*7?", "answer": "42"}
CODE = {
    "domain": "code",
    "prompt": "add",
    "tests": {"kind": "stdin", "cases": [{"input": "1 2", "output": "3"}]},
}
PROGRAM = "```python\nprint(sum(map(int, input().split())))\n```"


def scores_of(*lines: str) -> list[Score]:
    out = io.StringIO()
    assert run_stream(lines, out, SETTINGS) == 0
    return [Score.model_validate_json(line) for line in out.getvalue().splitlines()]


def line(problem: object, text: object, **more: object) -> str:
    return json.dumps({"problem": problem, "text": text, **more}) + "\n"


def test_every_line_gets_a_score_in_order():
    scores = scores_of(
        line(CODE, PROGRAM),
        line(MATH, r"<think></think>\boxed{42}"),
        line(CODE, "<think></think>" + PROGRAM),
        line(MATH, r"\boxed{41}", index=5),
    )
    assert [s.verdict for s in scores] == ["AC", "AC", "AC", "WA"]
    assert [s.reward for s in scores] == [-1, 1, 1, -1]
    assert scores[3].index == 5


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("not json", "Expecting value"),
        ("[1]", "expected"),
        ("[" * 100_000, "recursion"),
        (line(MATH, 7), "expected"),
        (line({"id": "p1", "domain": "math", "prompt": "x"}, "t"), "needs an answer"),
        (line({**MATH, "anwser": "1"}, "t"), "anwser"),
        (line(MATH, "t", extra=1), "extra"),
        (line(None, "t"), "problem"),
        (line(MATH, "t", index="x"), "index"),
    ],
)
def test_a_malformed_line_is_answered_and_the_next_ones_judged(bad, reason):
    first, second = scores_of(bad, line(MATH, r"\boxed{42}"))
    assert first.verdict == "IE"
    assert reason in first.reason
    assert second.correct


def test_half_a_surrogate_pair_is_written_as_a_question_mark():
    broken = {**MATH, "id": "\ud800"}
    first, second, third = scores_of(
        line(broken, "\\boxed{\ud800}"), line(broken, 7), line(CODE, "```python\nx = '\udfff'\n```")
    )
    assert (first.problem_id, first.answer, first.verdict) == ("?", "?", "WA")
    assert (second.problem_id, second.verdict) == ("?", "IE")
    assert third.verdict == "CE"


def test_the_id_of_a_malformed_problem_is_kept():
    assert scores_of(line({"id": "p1", "domain": "math"}, "t"))[0].problem_id == "p1"


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
