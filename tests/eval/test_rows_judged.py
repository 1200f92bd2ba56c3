"""Of every row that is read by its shape, a right answer is AC and a wrong one WA; what cannot be
read right is refused.

`rows_judged.jsonl` has invented rows in the kinds of published datasets, each with a right and a
wrong answer said by hand. The files of ../shared/cases/schemas are held too where they are there,
as they are and written in other ways.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.explain import ConfigError
from klear.configs.settings.sources import Source
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
from klear.eval.records.row_files import read_rows
from klear.eval.rows.reading import numbered, read_problems, read_row, source_of
from tests.shared_data import DATA
from tests.tasks.manifests_by_hand import jsonl

SCHEMAS = DATA.parent / "cases" / "schemas"
CASES = [json.loads(line) for line in Path(__file__).with_name("rows_judged.jsonl").open()]
BY_SHAPE = Source(name="s", files=("rows.jsonl",))
ADD = "def add(a, b):\n    return a + b"
DOUBLE = "def d(a):\n    return 2 * a"
ADD_K = "class Solution:\n    def addK(self, a, k):\n        return [n + k for n in a]"
SUM = "a, b = map(int, input().split())\nprint(a + b)"
SEVEN_EIGHT = ("7", "8")
ANSWERS: dict[str, tuple[str | None, ...]] = {
    "AIME_2024_MaxwellJia": ("33", "204"), "AIME_aimo_validation": ("70", "5"),
    "AIME_int_answer_lower": ("33", "4"), "APPS": (SUM, SUM), "AQuA-RAT": ("B", "A"),
    "Big-Math": ("7", "34"), "BigCodeBench": (DOUBLE.replace("d(", "task_func("), None),
    "CodeContests": (SUM, SUM), "DAPO-Math": SEVEN_EIGHT, "DeepCoder_taco": (SUM, SUM),
    "DeepMath": ("7", "Yes"), "GPQA_openai_csv_style": ("B", "A"),
    "LeetCodeDataset": (ADD_K, "class Solution:\n    def g(self, n):\n        return n"),
    "LiveCodeBench_functional": (ADD_K, SUM), "MATH_hendrycks": ("7/2", "3"),
    "MBPP_full": (ADD, DOUBLE), "MBPP_plus": (ADD, DOUBLE), "MMLU-Pro": ("B", "A"),
    "MathArena": ("1/2", "3"), "Minerva_qwen_repo": ("3.2", "4"), "NuminaMath-CoT": ("7/2", None),
    "ORZ_hf": SEVEN_EIGHT, "OlympiadBench_multi_first": ("2, 3", "5"),
    "OpenMathReasoning": SEVEN_EIGHT, "Polaris": SEVEN_EIGHT, "SYNTHETIC-1_math": SEVEN_EIGHT,
    "SYNTHETIC-2_math": SEVEN_EIGHT, "Skywork-OR1-math": SEVEN_EIGHT,
    "TheoremQA_bool": ("True", "False"), "answer_is_long_solution": SEVEN_EIGHT,
    "answers_list_squad": SEVEN_EIGHT, "chat_prompt_answer": SEVEN_EIGHT,
    "code_with_solution_field": (ADD, DOUBLE), "gsm8k": ("18", "11"),
    "instruction_output": SEVEN_EIGHT, "mixed_math_code_rows": ("7", ADD),
    "open-r1_codeforces": (SUM, None), "prompt_ground_truth": SEVEN_EIGHT,
    "sharegpt_conversations": ("7", None), "two_gold_fields": SEVEN_EIGHT,
    "verl_gsm8k": ("18", "11"),
}  # fmt: skip
"""A right answer to each row; None for one without a gold. OpenCodeReasoning has none at all."""
WRONG = {"True": "False", "False": "True", "Yes": "No", "A": "B", "B": "A", "2, 3": "2"}


def as_text(row: dict[str, Any], spell: Callable[[Any], str] = json.dumps) -> dict[str, Any]:
    return {k: spell(v) if isinstance(v, dict | list) else v for k, v in row.items()}


def through_csv(row: dict[str, Any]) -> dict[str, Any]:
    text = io.StringIO()
    table = csv.DictWriter(text, list(row))
    table.writeheader()
    table.writerow(as_text(row))
    text.seek(0)
    return next(csv.DictReader(text))


WRITTEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "as it is": dict,
    "with spaces and capitals": lambda row: {k.replace("_", " ").title(): row[k] for k in row},
    "in the other order": lambda row: dict(reversed(list(row.items()))),
    "as JSON texts": as_text,
    "as Python texts": lambda row: as_text(row, repr),
    "as CSV": through_csv,
    "among other fields": lambda row: {"uid": "u", "level": "3", **row, "meta": {"n": 1}},
}


def answer_of(problem: Problem, text: str) -> str:
    return f"```python\n{text}\n```" if problem.domain == "code" else f"\\boxed{{{text}}}"


def misjudged(judged: list[tuple[str, Problem, str, str]]) -> list[Any]:
    """Of (name, problem, right answer, wrong answer), those that the judge takes otherwise."""
    items = [(case, text, verdict) for case in judged
             for text, verdict in ((case[2], "AC"), (case[3], "WA"))]  # fmt: skip
    with Judge() as judge:
        scores = judge.judge_many((case[1], answer_of(case[1], text), 0) for case, text, _ in items)
        return [
            (case[0], text, score.verdict, score.reason)
            for (case, text, verdict), score in zip(items, scores, strict=True)
            if score.verdict != verdict
        ]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_row_is_refused_or_read_as_what_it_is(case):
    if case.get("refused"):
        with pytest.raises(ValueError, match=r"^field "):
            read_row(case["row"], BY_SHAPE)
    else:
        problem, _ = read_row(case["row"], BY_SHAPE)
        assert (problem.domain == "code") == ("\n" in case["right"])


def test_right_answers_are_right_and_wrong_ones_wrong():
    judged = [
        (case["name"], read_row(case["row"], BY_SHAPE)[0], case["right"], case["wrong"])
        for case in CASES
        if not case.get("refused")
    ]
    assert not misjudged(judged)


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="needs ../shared/cases")
@pytest.mark.parametrize("way", WRITTEN)
def test_the_shared_schemas_are_never_read_wrongly_however_they_are_written(way):
    problems = list[tuple[str, Problem, str]]()
    for path in sorted(SCHEMAS.glob("*.jsonl")):
        rows = map(json.loads, path.open())
        for row, right in zip(rows, ANSWERS.get(path.stem, ()), strict=False):
            if path.stem == "DAPO-Math":
                right = row["reward_model"]["ground_truth"]
            if right is None:
                with pytest.raises(ValueError, match=r"^field "):
                    read_row(WRITTEN[way](row), BY_SHAPE)
            else:
                problem, _ = read_row(WRITTEN[way](row), BY_SHAPE)
                problems.append((path.stem, problem, right))
    assert {name for name, _, _ in problems} == ANSWERS.keys()
    assert not misjudged([(*problem, wrong_of(problem[2])) for problem in problems])


def wrong_of(right: str) -> str:
    for before, after in (("+", "*-7+"), ("2 *", "5 *"), ("return n", "return 9")):
        if "\n" in right and before in right:
            return right.replace(before, after)
    return WRONG.get(right, f"{right}123")


def write(path: Path, *golds: Any, options: int = 4) -> Path:
    names = [f"metal {n}" for n in "wxyz"[:options]]
    rows = [{"question": f"Which is {n}?", "choices": names, "answer": g} for n, g in
            enumerate(golds)]  # fmt: skip
    return jsonl(path, *rows)


def test_a_file_that_numbers_options_from_1_is_read_so_as_a_whole(tmp_path):
    def golds(*numbers: Any) -> list[str | None]:
        reading = read_problems(write(tmp_path / "r.jsonl", *numbers), BY_SHAPE)
        return [problem.answer for problem in reading.problems]

    assert golds(0, 1, 3) == ["A", "B", "D"]
    assert golds(1, 2, 4) == ["A", "B", "D"]
    assert golds("1", "2", "4") == ["A", "B", "D"]
    assert golds(*[1] * 30, 4) == ["A"] * 30 + ["D"]
    with pytest.raises(ConfigError, match="numbers of options begin at 0 or at 1"):
        golds(0, 1, 4)
    assert numbered(read_rows(write(tmp_path / "r.jsonl", 1, 4)), BY_SHAPE).options_from == 1


def test_a_letter_without_options_is_warned_of_with_its_row(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"question": "2?", "answer": "7"}\n{"question": "Which?", "answer": "B"}\n')
    lines = read_problems(path, BY_SHAPE).lines()
    assert "  warning: the gold of row 2 is a letter, and the row has no options" in lines


def test_where_numbers_of_options_begin_is_said_as_the_refusal_says(tmp_path):
    rows = ({"question": f"{n}?", "options": ["a", "b", "c"], "answer": n} for n in (0, 3, 1))
    file = jsonl(tmp_path / "r.jsonl", *rows)
    with pytest.raises(ConfigError, match="say it by --fields options_from=0 or 1"):
        read_problems(file, source_of("x", file))
    for first, letters in (("0", ["A", "B"]), ("1", ["C", "A"])):
        reading = read_problems(file, source_of("x", file, f"options_from={first}"))
        assert [p.answer for p in reading.problems] == letters
