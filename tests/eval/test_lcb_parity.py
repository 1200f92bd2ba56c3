"""LiveCodeBench's runner and comparison, rebuilt in the sandbox, and the two verdicts together."""

import json

import pytest
from shared_data import shared_rows

from klear.configs.files import PACKAGE
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.benchmarks.benchmarks import errata
from klear.eval.programs.lcb_runner import official, same_text, side_by_side
from klear.eval.programs.verify import judge_program
from klear.eval.records import TestSuite, Verdict, problem_id
from tests.eval.evaluations_by_hand import scored

OURS = JudgeSettings(runtime=JudgeRuntime(workers=1))
OFFICIAL = official(OURS)
ERRATA = "eval/benchmarks/errata.jsonl"
SUM = "print(sum(map(int, input().split())))"


@pytest.fixture
def verdicts(sandbox):
    def both(program: str, suite: dict) -> tuple[Verdict, ...]:
        tests = TestSuite.model_validate(suite)
        return tuple(judge_program(sandbox, tests, program, s).verdict for s in (OURS, OFFICIAL))

    return both


SUMS = {"kind": "stdin", "cases": [{"input": "1 2\n3 4\n", "output": "3\n"}]}
TOTAL = {"kind": "call", "fn_name": "f", "cases": [{"args": [[1, 2]], "output": [1, 2]}]}


PLAIN = [
    SUM,
    f"def main():\n    {SUM}\nif __name__ == '__main__':\n    main()",
    "import sys\nprint(sum(map(int, sys.stdin.readline().split())))",
    "import sys\nprint(sum(map(int, sys.stdin.read().split()[:2])))",
    "import sys\nprint(sum(map(int, sys.stdin.buffer.readline().split())))",
    f"import sys\n{SUM}\nsys.exit(0)",
    "from collections import Counter\na = list(map(int, input().split()))\nprint(sum(a))",
]
ONLY_PYTHON = [
    "import sys\nfor line in sys.stdin: print(sum(map(int, line.split()))); break",
    "import os\nos.write(1, b'3')",
    "import sys\nsys.stdout.buffer.write(b'3')",
    f'if __name__ == "__main__" and True:\n    {SUM}',
    "t = 0\ndef main():\n    global t\n    t += 3\nmain()\nprint(t)",
    "import os\nprint(3 if os.read(0, 9) else 0)",
    "print(sum(map(int, open(0).readline().split())))",
    "quit(print(3))",
    "import atexit\natexit.register(print, 3)",
]


@pytest.mark.parametrize("program", PLAIN + ONLY_PYTHON)
def test_plain_programs_pass_under_both_rules_and_others_in_a_real_interpreter(verdicts, program):
    ours, theirs = verdicts(program, SUMS)
    assert ours == "AC"
    assert (theirs == "AC") == (program in PLAIN)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("def f(a): return a", ("AC", "AC")),
        ("class Solution:\n    def f(self, a): return a", ("AC", "AC")),
        ("def f(a): return tuple(a)", ("AC", "AC")),
        ("def f(a): return deque(a)", ("AC", "WA")),
        ("def f(a): return [1.0000001, 2]", ("WA", "WA")),
        ("def f(a): return [2, 1]", ("WA", "WA")),
        ("def f(a): return 1 / 0", ("RE", "RE")),
        ("import os; os._exit(0)", ("WA", "WA")),
        ("def f(", ("CE", "CE")),
    ],
)
def test_calls_under_both_rules(verdicts, program, expected):
    assert verdicts(program, TOTAL) == expected


def test_lines_match_as_text_or_as_equal_decimals():
    for pair in (("1 2\n", "1 2"), ("1.0", "1"), ("1_000", "1000"), ("nan", "nan")):
        assert same_text(*pair)
    for pair in (("0.3000001", "0.3"), ("a  b", "a b"), ("1\n2", "1 2"), ("nan 1", "nan 1.0")):
        assert not same_text(*pair)


def test_two_judgements_are_counted_side_by_side():
    ours = [scored("p", r, i) for i, r in enumerate((True, True, False, False, None, True))]
    theirs = [scored("p", r, i) for i, r in enumerate((True, False, True, False, True))]
    assert side_by_side(ours, theirs) == (0.5, 2)
    assert side_by_side([], theirs) == (None, 0)


def test_errata_belong_to_published_problems_and_are_known_by_statement_or_by_their_own_id():
    rows = shared_rows("livecodebench/problems_v6")
    published = {problem_id(row["question_content"]): row["question_id"] for row in rows}
    listed = [json.loads(line) for line in (PACKAGE / ERRATA).read_text().splitlines()]
    theirs = {e["problem_id"]: e["question_id"] for e in listed if e["source"] == "livecodebench"}
    assert theirs.items() <= published.items()
    own = {name for name in theirs.values() if not name.isdigit()}  # a number may be anybody's
    assert errata() == {e["problem_id"] for e in listed} | own
