"""Math verdicts on collected cases and on published grades of long answers."""

import gzip
import json
from pathlib import Path

import pytest

from eval.answers import extract_boxed
from eval.math_answers.reading import parse
from eval.math_answers.task import run
from eval.math_answers.verify import quick_verdict

SHARED = Path(__file__).parents[3] / "shared"


def verdict_of_text(gold: str, text: str) -> str:
    """What the judge does, in this process."""
    answer = extract_boxed(text).answer
    return "WA" if answer is None else (quick_verdict(gold, answer) or run(gold, answer)).verdict


def cases() -> list[dict]:
    path = SHARED / "cases/math_cases.json"
    return json.loads(path.read_text()) if path.exists() else []


@pytest.mark.skipif(not cases(), reason="needs ../shared/cases/math_cases.json")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_collected_cases_are_judged_as_a_mathematician_would(case, quickest):
    def judge():
        parse.cache_clear()
        assert (verdict_of_text(case["gold"], case["answer"]) == "AC") is case["expected"]

    assert quickest(judge, below=2.5) < 2.5


def test_published_grades_are_reproduced():
    path = SHARED / "data/skythought_cot/aime24.jsonl.gz"
    if not path.exists():
        pytest.skip("needs ../shared/data/skythought_cot/aime24.jsonl.gz")
    tags = {"<|begin_of_thought|>": "<think>", "<|end_of_thought|>": "</think>"}
    tags |= {"<|begin_of_solution|>": "", "<|end_of_solution|>": ""}
    agree = total = 0
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            text = row["response"]
            for theirs, ours in tags.items():
                text = text.replace(theirs, ours)
            agree += (verdict_of_text(row["gt"], text) == "AC") is bool(row["correct"])
            total += 1
    assert agree / total >= 0.99  # two truncated answers without a box were graded right
