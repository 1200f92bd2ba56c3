"""One raw row becomes one problem: entries of the catalogue on rows in the schema of their dataset
(the contents are invented), and what holds for every source.

Schemas as of August 2026 from dataset cards and published loaders. Not verified: the wording of
Skywork's and AceReason-SFT's instructions around the problem, which of Skywork's forms of tests are
how frequent, and the type of aime_2024's answer.
"""

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from klear.configs.settings.sources import Source
from klear.eval.records import CallCase, CheckerCase, StdinCase, TestSuite
from klear.tasks.data.row_to_problem import BadField, field_of, prompt_of, to_problem


def verl(question: str, ground_truth: str, **more: Any) -> dict[str, Any]:
    return {
        "data_source": "any",
        "prompt": [{"content": question, "role": "user"}],
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
        **more,
    }


# ---------------------------------------------------------------- math

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
STEPS = "Let's think step by step and output the final answer within \\boxed{}."


PLAIN = {"problem": "What is 1 + 1?", "answer": "2"}
QUESTION = {"from": "human", "value": PLAIN["problem"]}
CHAT = [QUESTION, {"from": "gpt", "value": "<think>two</think>2"}]
MATH_ROWS: dict[str, dict[str, Any]] = {
    "openthoughts3_math": {"domain": "math", "conversations": CHAT},
    "numina_math": {**PLAIN, "problem_is_valid": "Yes", "solution_is_valid": "Yes"},
    "acereason_sft_math": {"category": "math", "input": f"What is 1 + 1?\n{BOXED}"},
    "acereason_math": PLAIN,
    "deepscaler": {**PLAIN, "solution": "It is 2."},
    "skywork_math": verl(f"What is 1 + 1? {STEPS}", '["2"]', extra_info={"index": 7}),
    "openr1_math": {**PLAIN, "generations": ["<think>two</think>2", "<think>tw"]},
    "klear_math": verl(f"What is 1 + 1? {BOXED}", "2", __index_level_0__="29999"),
    "aime24": {**PLAIN, "id": 60, "year": "2024"},
    "aime25": {**PLAIN, "id": "0"},
    "hmmt25": {**PLAIN, "problem_idx": 1, "problem_type": ["Algebra"]},
    "math500": {**PLAIN, "solution": "It is $\\boxed{2}$.", "level": 1},
}


def test_numinas_proofs_are_rejected_or_kept_as_prompts_for_sft():
    row = {**MATH_ROWS["numina_math"], "answer": "Proof"}
    with pytest.raises(BadField, match="field answer: 'Proof' is no answer to judge by"):
        to_problem(row, Source(use="numina_math"))
    problem = to_problem(row, Source(use="numina_math", gold_optional=True))
    assert (problem.judgeable, problem.answer) == (False, None)


def test_skyworks_rows_with_several_right_answers_are_rejected_with_their_number():
    row = verl("What is a root of x^2 = 4?", '["2", "-2"]')
    with pytest.raises(BadField, match=r"reward_model\.ground_truth: 2 answers; the judge takes"):
        to_problem(row, Source(use="skywork_math"))


# ---------------------------------------------------------------- code

EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and "
    "will generate a correct Python program that matches the specification and passes all tests."
)
STDIN = (StdinCase(input="1\n", output="2\n"), StdinCase(input="3\n", output="4\n"))
PAIRS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}
TACO = {
    "question": "Add one.",
    "starter_code": "",
    "input_output": json.dumps(PAIRS),
    "source": "codechef",
    "time_limit": "0.5 seconds",
    "memory_limit": "50000 bytes",
    "date": "2019-12-31",
}
APPS = {"id": 0, "question": "Add one.", "input_output": json.dumps(PAIRS), "starter_code": ""}
CODEFORCES: dict[str, Any] = {
    "id": "1/A",
    "contest_start": 1_704_067_200,
    "time_limit": 2.0,
    "memory_limit": 256.0,
    "description": "Add one.",
    "input_format": "One number.",
    "output_format": "Its successor.",
    "interaction_format": None,
    "note": None,
    "examples": [{"input": "1", "output": "2"}],
    "official_tests": [{"input": "1\n", "output": "2\n"}, {"input": "3\n", "output": "4\n"}],
    "official_tests_complete": True,
    "input_mode": "stdio",
    "generated_checker": None,
    "executable": True,
}


def livecodebench(private: Any, **more: Any) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(private)))).decode()
    return {
        "question_content": "Add one.",
        "platform": "atcoder",
        "contest_date": "2025-02-01T10:30:00",
        "starter_code": "",
        "public_test_cases": '[{"input": "1\\n", "output": "2\\n", "testtype": "stdin"}]',
        "private_test_cases": packed,
        "metadata": "{}",
        **more,
    }


CONVERSATION = [{"from": "human", "value": "Add one."}, {"from": "gpt", "value": "<think></think>"}]
PLACE = (
    "Add one.\n\nWrite Python code to solve the problem. Please place the solution code in the "
    "following format:\n```python\n# Your solution code here\n```"
)
CODE_ROWS: dict[str, dict[str, Any]] = {
    "openthoughts3_code": {"domain": "code", "conversations": CONVERSATION},
    "acereason_sft_code": {"category": "code", "input": PLACE},
    "opencodereasoning": {"input": "Add one.", "dataset": "code_contests", "split": "train"},
    "taco": TACO,
    "apps": APPS,
    "codeforces": CODEFORCES,
    "skywork_code": verl("Add one.", json.dumps({**PAIRS, "fn_name": None, "import_prefix": None})),
    "klear_code": verl(f"{EXPERT}\n\nAdd one.", json.dumps(PAIRS), hash="47c4"),
    "livecodebench": livecodebench([{"input": "3\n", "output": "4\n", "testtype": "stdin"}]),
}


WITHOUT_GOLD = {
    "openthoughts3_math", "acereason_sft_math", "openthoughts3_code", "acereason_sft_code",
    "opencodereasoning",
}  # fmt: skip


@pytest.mark.parametrize("name", MATH_ROWS | CODE_ROWS)
def test_a_row_of_the_dataset_is_a_problem_with_its_gold_or_a_prompt_that_nothing_can_judge(name):
    source = Source(use=name)
    problem = to_problem((MATH_ROWS | CODE_ROWS)[name], source)
    prompt, gold = ("What is 1 + 1?", "2") if source.domain == "math" else ("Add one.", STDIN)
    gold = gold if name not in WITHOUT_GOLD else None
    assert problem.prompt == prompt or (name == "codeforces" and problem.prompt.startswith(prompt))
    assert (problem.source, problem.judgeable) == (name, gold is not None)
    assert (problem.answer or (problem.tests and problem.tests.cases)) == gold


def test_opencodereasonings_placeholder_is_looked_up_by_dataset_split_and_index():
    row = {"input": "-", "dataset": "taco", "split": "test", "index": "1"}
    source = Source(use="opencodereasoning_looked_up")
    tables = {"taco/train": ["no", "no"], "taco/test": ["no", "Add one.", ""]}
    assert to_problem(row, source, tables).prompt == "Add one."
    for wrong, reason in [
        ({"dataset": "leet"}, "field index: no row 1 in the lookup table 'leet/test'"),
        ({"index": "3"}, "field index: no row 3 in the lookup table 'taco/test'"),
        ({"index": None}, "field index: no row None in the lookup table"),
        ({"index": "2"}, "field input: empty"),
    ]:
        with pytest.raises(BadField, match=reason):
            to_problem({**row, **wrong}, source, tables)


def test_functions_of_taco_and_apps_are_called_and_their_header_is_in_the_prompt():
    tests = {"fn_name": "add", "inputs": [[1], [3]], "outputs": [[2], [4]]}
    more = {"starter_code": "def add(n):\n\t", "input_output": json.dumps(tests)}
    for name, row in (("taco", TACO), ("apps", APPS)):
        problem = to_problem({**row, **more}, Source(use=name))
        assert problem.prompt == "Add one.\n\nStarter code\n\ndef add(n):"
        cases = (CallCase(args=(1,), output=2), CallCase(args=(3,), output=4))
        assert problem.tests == TestSuite(kind="call", fn_name="add", cases=cases)


def test_codeforces_prompt_limits_and_day_and_without_published_tests_a_prompt_for_sft():
    problem = to_problem(CODEFORCES, Source(use="codeforces"))
    assert problem.prompt == (
        "Add one.\n\nInput\n\nOne number.\n\nOutput\n\nIts successor.\n\n"
        "Examples\n\nInput:\n1\nOutput:\n2"
    )
    assert (problem.tests.time_limit_s, problem.tests.memory_mb) == (2.0, 256)
    assert problem.date == "2024-01-01"
    assert not to_problem({**CODEFORCES, "official_tests": []}, Source(use="codeforces")).judgeable


def test_codeforces_checker_sees_its_arguments_in_its_own_order(tmp_path, capsys, monkeypatch):
    """open-r1 calls `checker.py input answer output`, this judge `… input output answer`."""
    checker = '"""doc"""\nfrom __future__ import annotations\nimport sys\nprint(*sys.argv[1:])'
    row = {**CODEFORCES, "generated_checker": checker}
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
        (
            {"functional": "def check(candidate):\n    assert candidate(1) == 2\n\ncheck(add)"},
            "add",
            ["assert candidate(1) == 2"],
        ),
        (
            {
                "import_prefix": "from typing import *\n",
                "test_code": "def check(candidate):\n    assert candidate(n = 1) == 2\n",
                "entry_point": "Solution().add",
                "inputs": None,
            },
            "Solution().add",
            ["assert candidate(n = 1) == 2"],
        ),
    ],
)
def test_assertions_of_skywork_and_klear_run_one_by_one(tests, fn_name, codes):
    suite = to_problem(verl("Add one.", json.dumps(tests)), Source(use="skywork_code")).tests
    assert suite.fn_name == fn_name
    assert [c.model_dump()["code"] for c in suite.cases] == codes


def test_livecodebench_functions_are_named_by_the_metadata_and_keep_their_day():
    public = '[{"input": "1\\n[2]", "output": "3", "testtype": "functional"}]'
    private = [{"input": "4\n[5]", "output": "[6]", "testtype": "functional"}]
    header = "class Solution:\n    def add(self, a, b):\n        "
    named = {"metadata": '{"func_name": "add"}', "starter_code": header}
    row = livecodebench(private, public_test_cases=public, **named)
    problem = to_problem(row, Source(use="livecodebench"))
    assert problem.date == "2025-02-01"
    assert problem.prompt.endswith("Starter code\n\nclass Solution:\n    def add(self, a, b):")
    assert problem.tests.fn_name == "add"
    first, second = CallCase(args=(1, [2]), output=3), CallCase(args=(4, [5]), output=[6])
    assert problem.tests.cases == (first, second)


# ---------------------------------------------------------------- every source


def source(**fields: Any) -> Source:
    return Source.model_validate({"name": "s", "files": ["x"], **fields})


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


def test_the_first_turn_of_a_user_is_the_prompt_whoever_spoke_before():
    chat = [{"from": "system", "value": "s"}, {"from": "user", "value": " q "}, {"from": "user"}]
    assert prompt_of({"p": chat}, source(prompt_field="p")) == "q"


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
        (
            {"solution": "\\boxed{1} so \\boxed{\\frac{1}{2}}"},
            {"answer_field": "solution", "answer_in_box": True},
            "\\frac{1}{2}",
        ),
    ],
)
def test_answers_are_found_where_datasets_put_them(row, options, answer):
    assert to_problem({"problem": "p", **row}, source(**options)).answer == answer


@pytest.mark.parametrize("row", [{}, {"answer": None}, {"answer": " "}, {"answer": []}])
def test_gold_is_required_unless_the_source_says_otherwise(row):
    row = {"problem": "p", **row}
    with pytest.raises(BadField, match=r"field answer: (missing|empty)"):
        to_problem(row, source())
    assert not to_problem(row, source(gold_optional=True)).judgeable


def test_gold_that_is_there_but_cannot_be_used_is_a_reject_all_the_same():
    optional = source(domain="code", gold_optional=True)
    with pytest.raises(BadField, match="field tests: an object with"):
        to_problem({"problem": "p", "tests": {"weird": 1}}, optional)
    assert not to_problem({"problem": "p", "tests": []}, optional).judgeable


@pytest.mark.parametrize(("limit", "seconds"), [(2.5, 2.5), (None, 6), ("soon", 6), (0, 6)])
def test_the_rows_own_limit_counts_where_it_has_one(limit, seconds):
    limited = source(domain="code", time_limit_field="limit")
    tests = to_problem({"problem": "p", "tests": PAIRS, "limit": limit}, limited).tests
    assert tests.time_limit_s == seconds
