"""One raw row becomes one problem: entries of the catalogue on rows in the schema of their dataset
(the contents are invented), and what holds for every source.

Schemas as of August to November 2026 from dataset cards and published loaders. Not verified: the
wording of Skywork's, AceReason-SFT's and SYNTHETIC-2's instructions around the problem, which of
Skywork's and Dolci's forms of tests are how frequent, and the type of aime_2024's answer.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from klear.configs.settings.sources import Source
from klear.eval.records import CallCase, CheckerCase, Rejected, StdinCase, TestSuite
from klear.eval.records.row_files import Row
from klear.eval.rows.fields import BadField, field_of
from klear.eval.rows.to_problem import pass_rate_of, prompt_of, to_problem, traces_of
from klear.tasks.data.sources import checked
from tests.eval.evaluations_by_hand import packed

SUM, _, _, ROWS = yaml.safe_load(Path(__file__).with_name("dataset_rows.yaml").read_text("utf-8"))
TESTS = ROWS["livecodebench"]["private_test_cases"]
ROWS["livecodebench"]["private_test_cases"] = packed(json.loads(TESTS))
STDIN = (StdinCase(input="1\n", output="2\n"), StdinCase(input="3\n", output="4\n"))
WITHOUT_GOLD = {
    "openthoughts3_math", "acereason_sft_math", "openthoughts3_code", "acereason_sft_code",
    "opencodereasoning",
}  # fmt: skip


def row_of(name: str, **changed: Any) -> dict[str, Any]:
    return {**ROWS[name], **changed}


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("numina_math", {"answer": "Proof"}, "answer: 'Proof' is no answer to judge by"),
        ("skywork_math", {"reward_model": {"ground_truth": '["2", "-2"]'}},
         r"reward_model\.ground_truth: 2 answers; the judge takes"),
        ("dapo_math", {"reward_model": {}}, r"reward_model\.ground_truth: missing"),
        ("deepmath", {"final_answer": {"value": 2}}, "final_answer: must be text or a number"),
        ("openmathreasoning", {"expected_answer": " "}, "expected_answer: empty"),
        ("dolci_think_rl_math", {"ground_truth": ["2", "3"]}, "ground_truth: 2 answers"),
        ("olympiadbench_math", {"final_answer": [["2"]]}, "final_answer: must be text or a number"),
        ("aime26", {"problem": 2}, "problem: must be text, this is a int"),
        ("deepcoder_primeintellect", {"tests": "["}, "tests: tests are neither JSON nor Python"),
        ("deepcoder_taco", {"tests": {"inputs": ["1"], "outputs": []}}, "tests: 1 inputs but 0"),
        ("intellect3_code", {"info": "{}"}, r"info\.tests: missing"),
        ("synthetic2_rl_code", {"verification_info": "["},
         r"verification_info\.test_cases: missing"),
        ("dolci_think_rl_code", {"ground_truth": ["eJyA"]}, r"ground_truth\.0: packed tests"),
    ],
)  # fmt: skip
def test_a_row_without_usable_gold_is_refused_with_the_fields_name(name, changed, reason):
    with pytest.raises(BadField, match=f"^field {reason}"):
        to_problem(row_of(name, **changed), Source(use=name))
    if name == "numina_math":  # proofs may be kept as prompts for SFT
        problem = to_problem(row_of(name, **changed), Source(use=name, gold_optional=True))
        assert (problem.judgeable, problem.answer) == (False, None)


@pytest.mark.parametrize("name", [*ROWS, "opencodereasoning2", "liveoibench"])
def test_a_row_without_a_prompt_is_rejected_with_file_row_and_field(name):
    source = Source(use=name)
    field = source.prompt_parts[0].field if source.prompt_parts else source.prompt_field
    columns = ROWS.get(name, {"tests": TESTS})
    rejected = checked(Row("rows.jsonl", 7, {**columns, field: None}), source, {})
    assert isinstance(rejected, Rejected)
    assert rejected.reason == f"rows.jsonl row 7: field {field}: missing"


TRACED = {
    "openthoughts3_math": ["<think>two</think>2"],
    "openr1_math": ["<think>two</think>2", "<think>tw"],
    "openmathreasoning": ["<think>two</think>2"],
    "deepmath": ["It is 2.", "<think>two</think>2"],
}


RATED = {
    "openmathreasoning": (0.65625, 1),
    "polaris": (7 / 8, 8),
    "big_math": (0.5, 1),
    "intellect3_math": (0.5, 1),
    "intellect3_code": (0.25, 1),
    "synthetic2_rl_code": (0.5, 1),
    "dolci_think_rl_math": (0.5, 1),
}


@pytest.mark.parametrize("value", ["9/8", "3/0", -1, 1.5, "easy", "nan", [0.5]])
def test_what_is_no_pass_rate_is_refused_and_a_judgement_is_that_of_one_answer(value):
    with pytest.raises(BadField, match=r"^field difficulty: .* is no pass rate between 0 and 1"):
        pass_rate_of({**ROWS["polaris"], "difficulty": value}, Source(use="polaris"))
    rates = {"right": 1.0, "wrong": 0.0, "n/a": None, None: None, "": None, 1: 1.0}
    for judgement, rate in rates.items():
        published = pass_rate_of({"judgement": judgement}, Source(use="opencodereasoning2"))
        assert (published.rate if published else None) == rate


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_dataset_is_a_problem_with_its_gold_and_what_is_published_about_it(name):
    """Or a prompt that nothing can judge."""
    row, source = ROWS[name], Source(use=name)
    problem = to_problem(row, source)
    prompt, gold = SUM.values() if source.domain == "math" else ("Add one.", STDIN)
    gold = gold if name not in WITHOUT_GOLD else None
    assert problem.prompt == prompt or (name == "codeforces" and problem.prompt.startswith(prompt))
    assert (problem.source, problem.judgeable) == (name, gold is not None)
    assert (problem.answer or (problem.tests and problem.tests.cases)) == gold
    if name in TRACED:
        writer = {"openthoughts3_math": "QwQ-32B", "openmathreasoning": "any"}
        traces = [(trace.text, trace.model) for trace in traces_of(row, source)]
        assert traces == [(text, writer.get(name, "DeepSeek-R1")) for text in TRACED[name]]
    if name in RATED:
        rate = pass_rate_of(row, source)
        assert rate is not None
        assert (rate.rate, rate.answers, rate.model) == (*RATED[name], source.pass_rate_model)


@pytest.mark.parametrize(
    ("name", "field"),
    [("opencodereasoning_looked_up", "input"), ("opencodereasoning2", "question")],
)
def test_opencodereasonings_placeholder_is_looked_up_by_dataset_split_and_index(name, field):
    row = {field: "-", "dataset": "taco", "split": "test", "index": "1"}
    source = Source(use=name)
    tables = {"taco/train": {"1": "no"}, "taco/test": {"0": "no", "1": "Add one.", "2": ""}}
    assert to_problem(row, source, tables).prompt == "Add one."
    for wrong, reason in [
        ({"dataset": "leet"}, "field index: no row 1 in the lookup table 'leet/test'"),
        ({"index": "3"}, "field index: no row 3 in the lookup table 'taco/test'"),
        ({"index": None}, "field index: no row None in the lookup table"),
        ({"index": "2"}, f"field {field}: empty"),
    ]:
        with pytest.raises(BadField, match=reason):
            to_problem({**row, **wrong}, source, tables)


def test_liveoibenchs_statement_is_looked_up_by_the_problem_and_its_tests_have_names():
    tests = {"01a": {"input": "1\n", "output": "2\n"}, "01b": {"input": "3\n", "output": "4\n"}}
    row = {"problem_id": "IOI-2025-contest-add", "tests": json.dumps(tests), "subtasks": "{}"}
    source, statements = Source(use="liveoibench"), {"problems": {row["problem_id"]: "Add."}}
    problem = to_problem(row, source, statements)
    assert (problem.prompt, problem.tests.cases) == ("Add.", STDIN)
    with pytest.raises(BadField, match=r"problem_id: no row IOI-.* in the lookup table 'prob"):
        to_problem(row, source, {"problems": {}})
    with pytest.raises(BadField, match=r"^field tests: "):
        to_problem({**row, "tests": '{"01a": {"input": "1"}}'}, source, statements)


def test_functions_of_taco_and_apps_are_called_and_their_header_is_in_the_prompt():
    tests = {"fn_name": "add", "inputs": [[1], [3]], "outputs": [[2], [4]]}
    more = {"starter_code": "def add(n):\n\t", "input_output": json.dumps(tests)}
    for name in ("taco", "apps"):
        problem = to_problem(row_of(name, **more), Source(use=name))
        assert problem.prompt == "Add one.\n\nStarter code\n\ndef add(n):"
        cases = (CallCase(args=(1,), output=2), CallCase(args=(3,), output=4))
        assert problem.tests == TestSuite(kind="call", fn_name="add", cases=cases, wrapped=True)


def test_codeforces_prompt_limits_and_day_and_without_published_tests_a_prompt_for_sft():
    source = Source(use="codeforces")
    problem = to_problem(ROWS["codeforces"], source)
    assert problem.prompt == (
        "Add one.\n\nInput\n\nOne number.\n\nOutput\n\nIts successor.\n\n"
        "Examples\n\nInput:\n1\nOutput:\n2"
    )
    assert (problem.tests.time_limit_s, problem.tests.memory_mb) == (2.0, 256)
    assert problem.date == "2024-01-01"
    assert not to_problem(row_of("codeforces", official_tests=[]), source).judgeable


def test_codeforces_checker_sees_its_arguments_in_its_own_order(tmp_path, capsys, monkeypatch):
    """open-r1 calls `checker.py input answer output`, this judge `… input output answer`."""
    checker = '"""doc"""\nfrom __future__ import annotations\nimport sys\nprint(*sys.argv[1:])'
    row = row_of("codeforces", generated_checker=checker)
    suite = to_problem(row, Source(use="codeforces")).tests
    assert suite.kind == "checker"
    case = suite.cases[0]
    assert isinstance(case, CheckerCase)
    assert (case.input, case.output) == ("1\n", "2\n")
    monkeypatch.setattr("sys.argv", ["checker.py", "input", "output", "answer"])
    exec(compile(case.checker, "checker.py", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == "input answer output\n"


@pytest.mark.parametrize(
    ("tests", "fn_name", "codes"),
    [
        ({"assert_case": ["assert add(1) == 2"]}, None, ["assert add(1) == 2"]),
        ({"functional": ["assert add(1) == 2"]}, None, ["assert add(1) == 2"]),
        ({"functional": "def check(candidate):\n    assert candidate(1) == 2\n\ncheck(add)"},
         "add", ["assert candidate(1) == 2"]),
        ({"import_prefix": "from typing import *\n", "entry_point": "Solution().add",
          "test_code": "def check(candidate):\n    assert candidate(n = 1) == 2\n",
          "inputs": None}, "Solution().add", ["assert candidate(n = 1) == 2"]),
    ],
)  # fmt: skip
def test_assertions_of_skywork_and_klear_run_one_by_one(tests, fn_name, codes):
    row = row_of("skywork_code", reward_model={"ground_truth": json.dumps(tests)})
    suite = to_problem(row, Source(use="skywork_code")).tests
    assert suite.fn_name == fn_name
    assert [c.model_dump()["code"] for c in suite.cases] == codes


def test_mbpp_shows_assertions_that_name_the_function_and_runs_its_setup_before_each():
    tests = ["assert add(N, 1) == 2", "assert add(N, 2) == 3"]
    row = {"text": "Add two numbers.", "test_setup_code": "N = 1", "test_list": tests}
    problem = to_problem(row, Source(use="mbpp"))
    shown = "Your code should pass these tests:\n\n" + "\n".join(tests)
    assert problem.prompt == f"Add two numbers.\n\n{shown}"
    assert [c.model_dump()["code"] for c in problem.tests.cases] == [f"N = 1\n{t}" for t in tests]
    plus = {"prompt": "Add.", "test_list": tests, "test": "N = 1\nassert add(N, 1) == 2"}
    prompt = to_problem(plus, Source(use="mbpp_plus")).prompt
    assert prompt == f"Add.\n\nYour code should pass this test:\n\n{tests[0]}"


def test_humanevals_tests_may_use_a_function_that_only_the_prompt_defines():
    prompt = 'def twice(x):\n    return 2 * x\n\ndef half(x):\n    """The inverse of twice."""\n'
    test = "def check(candidate):\n    assert candidate(twice(3)) == 3"
    row = {"prompt": prompt, "entry_point": "half", "test": test}
    (case,) = to_problem(row, Source(use="humaneval")).tests.cases
    assert case.model_dump()["code"] == (
        "def twice(x):\n    return 2 * x\nassert candidate(twice(3)) == 3"
    )


@pytest.mark.parametrize(
    ("options", "gold", "letter"),
    [
        (["Iron", "Neon"], 1, "B"),  # MMLU
        (["Iron", "Neon"], "B", "B"),  # MMLU-Pro
        (["A)21", "B)22"], "B", "B"),  # AQuA
        ({"text": ["Iron", "Neon"], "label": ["1", "2"]}, "2", "B"),  # ARC
        ({"A": "Iron", "B": "Neon"}, "neon", "B"),
        ([[{"aoVal": "A", "content": "1"}], [{"aoVal": "B", "content": "2"}]], "B", "B"),
        ("a ) 38 , b ) 27.5 , c ) none", "b", "B"),  # MathQA
    ],
)
def test_options_join_the_prompt_and_the_gold_is_their_letter(options, gold, letter):
    row = {"problem": "Which?", "options": options, "answer": gold}
    problem = to_problem(row, source(options_field="options"))
    assert problem.answer == letter
    lines = problem.prompt.split("\n")
    assert lines[0] == "Which?"
    assert lines[3].startswith("B) ")
    assert not lines[3].startswith("B) B")


def test_a_gold_that_is_named_before_wrong_options_is_one_of_them_in_an_order_of_the_prompt():
    letters = set()
    for i in range(30):
        row = gpqa(f"{i}?", "Neon", "Iron", "Gold", "Tin")
        problem = to_problem(row, Source(use="gpqa_diamond"))
        assert f"\n{problem.answer}) Neon" in problem.prompt
        letters.add(problem.answer)
    assert letters == {*"ABCD"}


def gpqa(question: str, right: str, *wrong: str) -> dict[str, str]:
    options = {f"Incorrect Answer {i}": text for i, text in enumerate(wrong, 1)}
    return {"Question": question, "Correct Answer": right, **options}


def test_a_right_option_that_reads_like_the_number_of_a_wrong_one_is_the_gold():
    for i in range(8):
        row = gpqa(f"{i}: how many?", "3", "4", "6", "5")
        problem = to_problem(row, Source(use="gpqa_diamond"))
        assert f"\n{problem.answer}) 3\n" in problem.prompt


def test_options_that_the_prompt_shows_by_letter_keep_the_order_in_which_it_shows_them():
    question = "Which?\nA) Iron\nB) Neon\nC) Gold\nD) Tin"
    row = gpqa(question, "Neon", "Iron", "Gold", "Tin")
    problem = to_problem(row, Source(use="gpqa_diamond"))
    assert (problem.prompt, problem.answer) == (question, "B")
    unread = gpqa(question.replace("B) Neon", "E) Neon"), "Neon", "Iron", "Gold", "Tin")
    with pytest.raises(BadField, match="order that cannot be read"):
        to_problem(unread, Source(use="gpqa_diamond"))


@pytest.mark.parametrize(("options", "gold", "reason"), [
    (["A", "C", "G", "T"], "C", "'C' is an option, and the letter of another one"),
    ({"3": "9", "4": "3"}, "3", "'3' is an option, and the label of another one"),
    (["Iron", "Neon"], 2, "2 is the place of none of 2 options"),
    (["Iron", "Neon"], "Tin", "'Tin' is none of the 2 options"),
])  # fmt: skip
def test_a_gold_that_is_no_option_or_is_one_and_names_another_is_refused(options, gold, reason):
    row = {"problem": "Which?", "options": options, "answer": gold}
    with pytest.raises(BadField, match=f"^field answer: {reason}"):
        to_problem(row, source(options_field="options"))
    row |= {"options": ["A", "B"], "answer": "B"}
    assert to_problem(row, source(options_field="options")).answer == "B"


def test_livecodebench_functions_are_named_by_the_metadata_and_keep_their_day():
    public = '[{"input": "1\\n[2]", "output": "3", "testtype": "functional"}]'
    private = [{"input": "4\n[5]", "output": "[6]", "testtype": "functional"}]
    header = "class Solution:\n    def add(self, a, b):\n        "
    named = {"metadata": '{"func_name": "add"}', "starter_code": header}
    tests = {"public_test_cases": public, "private_test_cases": packed(private)}
    row = row_of("livecodebench", **tests, **named)
    problem = to_problem(row, Source(use="livecodebench"))
    assert problem.date == "2025-02-01"
    assert problem.prompt.endswith("Starter code\n\nclass Solution:\n    def add(self, a, b):")
    assert problem.tests.fn_name == "add"
    first, second = CallCase(args=(1, [2]), output=3), CallCase(args=(4, [5]), output=[6])
    assert problem.tests.cases == (first, second)


def source(**fields: Any) -> Source:
    return Source.model_validate({"name": "s", "files": ["x"], "by_shape": False, **fields})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        (" \n", "empty"),
        (7, "must be text, this is a int"),
        ([], "missing"),
        ([{"role": "assistant", "content": "a"}], "missing"),
        ([{"role": "user", "content": [{"type": "image"}]}], "must be text, this is a list"),
    ],
)
def test_what_is_no_prompt_is_named(value, reason):
    with pytest.raises(BadField, match=f"^field p: {reason}$"):
        prompt_of({"p": value}, source(prompt_field="p"))


def test_the_last_turn_of_a_user_is_the_prompt_with_the_examples_before_it():
    few = [("system", "s"), ("user", "1?"), ("assistant", "1"), ("user", "2?"), ("assistant", "2")]
    chat = [{"role": role, "content": text} for role, text in few]
    prompt = prompt_of({"p": chat}, source(prompt_field="p"))
    assert prompt == "User: 1?\n\nAssistant: 1\n\nUser: 2?"
    traced = source(prompt_field="p", trace_fields=["p"], trace_model="m")
    assert [trace.text for trace in traces_of({"p": chat}, traced)] == ["2"]
    alone = [{"from": "system", "value": "s"}, {"from": "user", "value": " q "}, {"from": "user"}]
    assert prompt_of({"p": alone}, source(prompt_field="p")) == "q"


def test_a_dot_reaches_into_objects_lists_and_json_texts():
    row = {"a": {"b": [{"c": 1}]}, "t": '{"b": {"c": 2}}', "x.y": 3, "n": None}
    assert field_of(row, "a.b.0.c") == 1
    assert field_of(row, "t.b.c") == 2
    assert field_of(row, "x.y") == 3
    for name in ("n", "n.a", "a.b.1", "a.b.c", "t.b.d", "z"):
        assert field_of(row, name) is None


@pytest.mark.parametrize(
    ("row", "options", "answer"),
    [
        ({"answer": 3.5}, {}, "3.5"),
        ({"r": '{"gt": "5"}'}, {"answer_field": "r.gt"}, "5"),
        ({"solution": "\\boxed{1} so \\boxed{\\frac{1}{2}}"},
         {"answer_field": "solution", "answer_in_box": True}, "\\frac{1}{2}"),
    ],
)  # fmt: skip
def test_answers_are_found_where_datasets_put_them(row, options, answer):
    assert to_problem({"problem": "p", **row}, source(**options)).answer == answer


@pytest.mark.parametrize("row", [{}, {"answer": None}, {"answer": " "}, {"answer": []}])
def test_gold_is_required_unless_the_source_says_otherwise_and_wrong_gold_is_always_a_reject(row):
    row = {"problem": "p", **row}
    with pytest.raises(BadField, match=r"field answer: (missing|empty)"):
        to_problem(row, source())
    assert not to_problem(row, source(gold_optional=True)).judgeable
    optional = source(domain="code", gold_optional=True)
    with pytest.raises(BadField, match="field tests: an object with"):
        to_problem({"problem": "p", "tests": {"weird": 1}}, optional)
    assert not to_problem({"problem": "p", "tests": []}, optional).judgeable


@pytest.mark.parametrize(("limit", "seconds"), [(2.5, 2.5), (None, 6), ("soon", 6), (0, 6)])
def test_the_rows_own_limit_counts_where_it_has_one(limit, seconds):
    limited = source(domain="code", time_limit_field="limit")
    tests = to_problem({"problem": "p", "tests": TESTS, "limit": limit}, limited).tests
    assert tests.time_limit_s == seconds


@pytest.mark.parametrize(
    ("entry", "text", "trace"),
    [
        ("gsm8k_train", "She has 2 + 3 = <<2+3=5>>5 eggs.\n#### 5",
         "<think>\nShe has 2 + 3 = <<2+3=5>>5 eggs.\n</think>\n\\boxed{5}"),
        ("gsm8k_train", "<think>2 + 3</think>\n#### 5", "<think>2 + 3</think>\n#### 5"),
        ("gsm8k_train", "Five eggs.", "Five eggs."),
        ("mbpp_train", "def f(n):\r\n\treturn n",
         "<think>\n</think>\n```python\ndef f(n):\r\n\treturn n\n```"),
        ("mbpp_train", "I would return n.", "I would return n."),
        ("mbpp_train", "```python\nprint(1)\n```", "```python\nprint(1)\n```"),
    ],
)  # fmt: skip
def test_a_solution_that_people_wrote_becomes_an_answer_as_a_reasoning_model_writes_it(
    entry, text, trace
):
    traced = Source(use=entry, trace_fields=("solution",), trace_model="people")
    assert [trace_read.text for trace_read in traces_of({"solution": text}, traced)] == [trace]
