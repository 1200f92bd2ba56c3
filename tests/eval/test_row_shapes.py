"""Rows of published kinds whose fields nobody named: read right, or refused by the field's name. Of
every row that is read, a right answer is AC and a wrong one WA.

`row_shapes.yaml` and `rows_judged.jsonl` have invented rows in the kinds of published datasets, the
second with a right and a wrong answer by hand. The files of ../shared/cases/schemas are held too
where they are there, as they are and written in other ways.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from klear.configs.settings.explain import ConfigError
from klear.configs.settings.sources import Source
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
from klear.eval.records.row_files import read_rows
from klear.eval.rows.reading import (
    named_files,
    numbered,
    read_problems,
    read_row,
    refuse_early,
    source_of,
)
from klear.flows.cli.main import main
from tests.shared_data import DATA
from tests.tasks.manifests_by_hand import jsonl

SHAPES = yaml.safe_load(Path(__file__).with_name("row_shapes.yaml").read_text("utf-8"))
CASES = [json.loads(line) for line in Path(__file__).with_name("rows_judged.jsonl").open()]
BY_SHAPE = Source(name="s", files=("rows.jsonl",))
SCHEMAS = DATA.parent / "cases" / "schemas"


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_of_a_published_kind_is_read_right_or_refused_with_the_reason(name):
    case = SHAPES[name]
    row = json.loads(case["row"]) if isinstance(case["row"], str) else case["row"]
    if "refused" in case:
        with pytest.raises(ValueError, match=case["refused"]):
            read_row(row, BY_SHAPE)
        return
    problem, _ = read_row(row, BY_SHAPE)
    if "answer" in case:
        assert problem.answer == case["answer"]
    else:
        assert problem.tests is not None
        assert [problem.tests.kind, len(problem.tests.cases)] == case["tests"]
        assert problem.tests.fn_name == case.get("function")
    for part in case.get("prompt", []):
        assert part in problem.prompt
    for part in case.get("without", []):
        assert part not in problem.prompt


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(remember=1000) as running:
        yield running


def answer_of(problem: Problem, text: str) -> str:
    return f"```python\n{text}\n```" if problem.domain == "code" else f"\\boxed{{{text}}}"


def check_judged(judge: Judge, judged: Iterable[tuple[str, Problem, str, str]]) -> None:
    """Of (name, problem, right answer, wrong answer)."""
    items = [(case, text, verdict) for case in judged
             for text, verdict in ((case[2], "AC"), (case[3], "WA"))]  # fmt: skip
    scores = judge.judge_many((case[1], answer_of(case[1], text), 0) for case, text, _ in items)
    for (case, text, verdict), score in zip(items, scores, strict=True):
        assert score.verdict == verdict, (case[0], text, score.reason)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_row_is_refused_or_read_as_what_it_is(case):
    if case.get("refused"):
        with pytest.raises(ValueError, match=r"^field "):
            read_row(case["row"], BY_SHAPE)
    else:
        problem, _ = read_row(case["row"], BY_SHAPE)
        assert (problem.domain == "code") == ("\n" in case["right"])


def test_right_answers_are_right_and_wrong_ones_wrong(judge):
    cases = [*CASES, *({"name": name, **case} for name, case in SHAPES.items() if "right" in case)]
    check_judged(
        judge,
        ((case["name"], read_row(case["row"], BY_SHAPE)[0], case["right"], case["wrong"])
         for case in cases if not case.get("refused")),
    )  # fmt: skip


def test_one_line_says_what_was_read_and_what_was_rejected_and_why(tmp_path):
    good = {"question": "Tom has 3 bags of 6.", "answer": "3*6=<<3*6=18>>18\n#### 1,018"}
    bad = {"question": "Why?", "answer": "It is so because he has three bags of them, as we said."}
    letter = {"question": "Which?", "answer": "B"}
    reading = read_problems(jsonl(tmp_path / "a.v1.jsonl", good, bad, letter), BY_SHAPE)
    line, warning, *rejected = reading.lines()
    assert line.startswith("a.v1.jsonl: 1 math problem · prompt: question · gold: answer after ")
    assert line.endswith('first: "Tom has 3 bags of 6." → 1,018')
    assert "warning: the gold of row 3 is a letter, and the row has no options" in warning
    assert rejected[0] == "  1 row rejected; the first of each kind:"
    assert "row 2: field answer: the gold is a sentence" in rejected[1]


def test_two_versions_of_a_file_have_two_names_and_packed_files_their_own(tmp_path):
    paths = [tmp_path / name for name in ("a.v1.jsonl", "a.v2.jsonl.gz", "b.csv", "c/b.csv")]
    assert list(named_files(paths)) == ["a.v1", "a.v2", str(paths[2]), str(paths[3])]


def test_a_refusal_names_every_field_looked_for_and_a_fix_that_works_when_typed(tmp_path):
    path = jsonl(tmp_path / "r.jsonl", {"foo": "What is 2 + 2?", "bar": "4", "id": "9"})
    with pytest.raises(ConfigError) as refusal:
        read_problems(path, BY_SHAPE)
    message = str(refusal.value)
    assert all(
        name in message for name in ("problem", "question_content", "0.value", "foo, bar, id")
    )
    fields = message.rpartition("--fields ")[2].strip()
    (problem,) = read_problems(path, source_of("r", path, fields)).problems
    assert (problem.prompt, problem.answer) == ("What is 2 + 2?", "4")


def test_programs_without_tests_are_no_math(tmp_path):
    rows = [{"input": "Add.", "output": "x", "solution": "def f():\n    return 1"},
            {"input": "b", "output": "7"}]  # fmt: skip
    path = jsonl(tmp_path / "r.jsonl", *rows)
    for refuse in (read_problems, refuse_early):  # judge and preview; eval
        with pytest.raises(ConfigError, match="holds programs as answers and no tests"):
            refuse(path, BY_SHAPE)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".jsonl.gz", ".jsonl.zst"])
def test_tables_and_packed_files_are_read_alike(tmp_path, suffix):
    row = {"Question": 'Is "2, 3"\na pair?', "Correct Answer": "7"}
    path = tmp_path / f"rows{suffix}"
    mark = "\t" if ".tsv" in suffix else ","
    quoted = '"' + row["Question"].replace('"', '""') + '"'
    text = f"Question{mark}Correct Answer\n{quoted}{mark}7\n"
    data = (json.dumps(row) + "\n" if "jsonl" in suffix else text).encode()
    if suffix.endswith(".gz"):
        data = gzip.compress(data)
    elif suffix.endswith(".zst"):
        data = bytes(pa.compress(data, "zstd", asbytes=True))
    path.write_bytes(data)
    assert [row_read.value for row_read in read_rows(path)] == [row]
    (problem,) = read_problems(path, BY_SHAPE).problems
    assert problem.answer == "7"


def test_a_line_of_a_table_with_other_columns_is_a_reject(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("problem,answer\na,1\nb\nc,1,2\nd,4\n")
    reading = read_problems(path, BY_SHAPE)
    assert [p.prompt for p in reading.problems] == ["a", "d"]
    assert [text.partition(":")[0] for text in reading.rejected] == ["row 2", "row 3"]


def test_several_golds_are_read_as_the_refusal_says_and_judged_so(judge, tmp_path):
    path = jsonl(tmp_path / "r.jsonl", {"problem": "Solve it.", "answer": ["\\frac{x}{2}", "2x"]})
    with pytest.raises(ConfigError) as refusal:
        read_problems(path, BY_SHAPE)
    typed = [part.split()[0] for part in str(refusal.value).split("--fields ")[1:]]
    verdicts = {}
    for fields in typed:
        reading = read_problems(path, source_of("r", path, fields))
        verdicts[fields] = [
            judge.judge(reading.problems[0], f"\\boxed{{{answer}}}").verdict
            for answer in ("x+x", "0.5x", "3x", "x/2, 2x")
        ]
        assert f"gold: {fields.partition(',')[2][:3]} of answer" in reading.lines()[0]
    assert verdicts == {
        "gold=answer,any_answer=true": ["AC", "AC", "WA", "WA"],
        "gold=answer,all_answers=true": ["WA", "WA", "WA", "AC"],
    }


def test_a_reference_that_fails_on_its_own_input_leaves_every_answer_unscored(judge):
    row = {**SHAPES["evalplus_humaneval"]["row"], "plus_input": [[[]]]}
    problem, way = read_row(row, BY_SHAPE)
    assert way.endswith("tests: base_input + plus_input")
    score = judge.judge(problem, answer_of(problem, SHAPES["evalplus_humaneval"]["right"]))
    assert score.verdict == "IE"
    assert "the reference program fails on ([],)" in score.reason


def test_fields_and_an_entry_of_the_catalogue_say_how_a_file_is_read(tmp_path):
    row = {"problem": "p?", "answer": "5", "final_answer": "7", "question": "q?"}
    path = jsonl(tmp_path / "r.jsonl", row)
    named = source_of("r", path, 'prompt=question,gold="final_answer"')
    (problem,) = read_problems(path, named).problems
    assert (problem.prompt, problem.answer) == ("q?", "7")
    reading = read_problems(path, source_of("r", path, use="deepmath"))
    assert [(p.prompt, p.answer) for p in reading.problems] == [("q?", "7")]
    assert "1 math problem · prompt: question · gold: final_answer" in reading.lines()[0]
    with pytest.raises(ConfigError, match="names are prompt, gold"):
        source_of("r", path, "promt=question")


def test_preview_shows_a_row_as_the_judge_sees_it(tmp_path, capsys):
    row = {"question": "Which?", "choices": ["Iron", "Neon"], "answer": 1, "subject": "chem"}
    assert main(["preview", str(jsonl(tmp_path / "r.jsonl", row))]) == 0
    output = capsys.readouterr().out
    assert "gold: letter of answer" in output
    assert "B) Neon" in output
    assert "gold      B" in output
    assert "not used  subject" in output


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
    "OpenCodeReasoning": (None,),
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
"""A right answer to each row; None for one without a gold."""
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


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="needs ../shared/cases")
@pytest.mark.parametrize("way", WRITTEN)
def test_the_shared_schemas_are_never_read_wrongly_however_they_are_written(judge, way):
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
    assert {name for name, _, _ in problems} == ANSWERS.keys() - {"OpenCodeReasoning"}
    check_judged(judge, ((*problem, wrong_of(problem[2])) for problem in problems))


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
    with pytest.raises(ConfigError, match="begin at 0 or at 1: say it by --fields options_from=0"):
        golds(0, 1, 4)
    file = tmp_path / "r.jsonl"
    for first, letters in (("0", ["A", "B"]), ("1", ["A", "D"])):
        reading = read_problems(file, source_of("x", file, f"options_from={first}"))
        assert [p.answer for p in reading.problems] == letters
    assert numbered(read_rows(write(tmp_path / "r.jsonl", 1, 4)), BY_SHAPE).options_from == 1


@pytest.mark.parametrize(
    ("numbers", "letters"), [((1, 0), ["B", "A"]), ((1, 2), ["A", "B"]), (("B", "A"), ["B", "A"])]
)
def test_options_in_numbered_columns_are_counted_as_the_file_counts_them(
    tmp_path, numbers, letters
):
    rows = [
        {"question": f"Why {n}?", "choice1": "Wet", "choice2": "Dry", "label": n} for n in numbers
    ]
    reading = read_problems(jsonl(tmp_path / "copa.jsonl", *rows), BY_SHAPE)
    assert [problem.answer for problem in reading.problems] == letters
