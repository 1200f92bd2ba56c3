"""Rows of published kinds whose fields nobody named: read right, or refused by the field's name."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from klear.configs.settings.explain import ConfigError
from klear.configs.settings.sources import Source
from klear.eval.judge.judge import Judge
from klear.eval.records.row_files import read_rows
from klear.eval.rows.reading import named_files, read_problems, read_row, refuse_early, source_of
from klear.flows.cli.main import main
from tests.shared_data import DATA
from tests.tasks.manifests_by_hand import jsonl

CASES = yaml.safe_load(Path(__file__).with_name("row_shapes.yaml").read_text("utf-8"))
BY_SHAPE = Source(name="s", files=("rows.jsonl",))
SCHEMAS = DATA.parent / "cases" / "schemas"


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_a_published_kind_is_read_right_or_refused_with_the_reason(name):
    case = CASES[name]
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


def test_every_code_row_accepts_its_right_program_and_no_wrong_one():
    programs = {name: case for name, case in CASES.items() if "right" in case}
    with Judge() as judge:
        for name, case in programs.items():
            problem, _ = read_row(case["row"], BY_SHAPE)
            for program, verdict in ((case["right"], "AC"), (case["wrong"], "WA")):
                score = judge.judge(problem, f"```python\n{program}\n```")
                assert score.verdict == verdict, (name, program, score.reason)


def test_one_line_says_what_was_read_and_what_was_rejected_and_why(tmp_path):
    good = {"question": "Tom has 3 bags of 6.", "answer": "3*6=<<3*6=18>>18\n#### 1,018"}
    bad = {"question": "Why?", "answer": "It is so because he has three bags of them, as we said."}
    reading = read_problems(jsonl(tmp_path / "a.v1.jsonl", good, bad), BY_SHAPE)
    line, *rejected = reading.lines()
    assert line == (
        'a.v1.jsonl: 1 math problem · prompt: question · gold: answer after "####" · '
        'first: "Tom has 3 bags of 6." → 1,018'
    )
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


def test_several_golds_are_read_as_the_refusal_says_and_judged_so(tmp_path):
    path = jsonl(tmp_path / "r.jsonl", {"problem": "Solve it.", "answer": ["\\frac{x}{2}", "2x"]})
    with pytest.raises(ConfigError) as refusal:
        read_problems(path, BY_SHAPE)
    typed = [part.split()[0] for part in str(refusal.value).split("--fields ")[1:]]
    verdicts = {}
    with Judge() as judge:
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


def test_a_reference_that_fails_on_its_own_input_leaves_every_answer_unscored():
    row = {**CASES["evalplus_humaneval"]["row"], "plus_input": [[[]]]}
    problem, way = read_row(row, BY_SHAPE)
    assert way.endswith("tests: base_input + plus_input")
    with Judge() as judge:
        score = judge.judge(problem, f"```python\n{CASES['evalplus_humaneval']['right']}\n```")
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


REFUSED = {"OpenCodeReasoning"}


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="needs ../shared/cases")
def test_the_shared_schemas_are_read_and_what_holds_no_gold_is_refused():
    read, refused = 0, set[str]()
    for path in sorted(SCHEMAS.glob("*.jsonl")):
        try:
            reading = read_problems(path, Source(name=path.stem, files=(str(path),)))
            read += bool(reading.problems)
        except ConfigError:
            refused.add(path.stem)
    assert refused == REFUSED
    assert read == 41
