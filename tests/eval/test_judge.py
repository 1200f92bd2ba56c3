"""One judge: verdicts become rewards, infrastructure failures become nothing at all."""

import itertools
import os
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import output_of
from pydantic import ValidationError

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings, RewardSettings
from klear.eval.judge.judge import Judge
from klear.eval.judge.workers import NoVerdict, WorkerPool
from klear.eval.programs.verify import chosen_suite
from klear.eval.records import Problem, TestSuite

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = JudgeRuntime(workers=2)
SETTINGS = JudgeSettings(runtime=RUNTIME)
MATH = Problem(domain="math", prompt="What is the root of 8?", answer=r"\sqrt{8}")
INTEGER = Problem(domain="math", prompt="What is 6 times 7?", answer="42")
TARGET = Problem(
    domain="math", prompt="Make 24 from 3, 4, 7, 9.", answer="24", numbers=(3, 4, 7, 9)
)
PAIRS = [("1 2\n", "3\n"), ("3 4\n", "7\n"), ("5 5\n", "10\n"), ("0 7\n", "7\n")]


def adding(*pairs: tuple[str, str]) -> Problem:
    tests = {"kind": "stdin", "cases": [{"input": i, "output": o} for i, o in pairs]}
    return Problem.model_validate({"domain": "code", "prompt": "Add two numbers.", "tests": tests})


CODE = adding(*PAIRS)
ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.fixture(scope="module")
def running():
    with Judge(SETTINGS) as started:
        yield started


def fenced(program: str, think: str = "<think>hm</think>\n") -> str:
    return f"{think}```python\n{program}\n```"


def boxed(answer: str, think: str = "<think>hm</think>\n") -> str:
    return rf"{think}So \boxed{{{answer}}}."


@pytest.mark.parametrize(
    ("problem", "text", "reward", "correct", "verdict"),
    [
        (INTEGER, boxed("42"), 1, True, "AC"),
        (INTEGER, boxed("41"), -1, False, "WA"),
        (INTEGER, boxed("42", think=""), -1, True, "AC"),
        (INTEGER, boxed("42", think="<think>"), -1, False, "WA"),
        (INTEGER, "<think>hm</think> It is 42.", -1, False, "WA"),
        (MATH, boxed(r"2\sqrt{2}"), 1, True, "AC"),
        (MATH, boxed(r"2\sqrt{3}"), -1, False, "WA"),
        (TARGET, boxed("9*3-7+4"), 1, True, "AC"),
        (TARGET, boxed("24"), -1, False, "WA"),
        (CODE, fenced(ADD), 1, True, "AC"),
        (CODE, fenced("print(7)"), 0.5, False, "WA"),
        (CODE, fenced("print(7)", think=""), -1, False, "WA"),
        (CODE, fenced(ADD, think=""), -1, True, "AC"),
        (CODE, "<think>hm</think> no idea", 0, False, "WA"),
        (CODE, fenced("print("), 0, False, "CE"),
    ],
)
def test_the_reward_is_about_the_format_too(running, problem, text, reward, correct, verdict):
    score = running.judge(problem, text, 3)
    assert (score.reward, score.correct, score.verdict) == (reward, correct, verdict)
    assert (score.problem_id, score.index) == (problem.id, 3)
    assert score.reason or score.correct


def test_scores_come_in_order_and_identical_programs_run_once(running, monkeypatch):
    submitted, submit = [], running._code.submit
    monkeypatch.setattr(running._code, "submit", lambda *a: submitted.append(a) or submit(*a))
    items = [(CODE, fenced((ADD if i % 4 else "print(7)") + "  # once"), i) for i in range(40)]
    scores = list(running.judge_many(items))
    assert [s.index for s in scores] == list(range(40))
    assert [s.correct for s in scores] == [bool(i % 4) for i in range(40)]
    assert len(submitted) == 2


def test_two_streams_of_scores_may_interleave_and_look_a_little_ahead(running):
    taken = []

    def endless(index):
        for i in itertools.count():
            taken.append(i)
            yield CODE, fenced(f"{ADD}\n#{i}"), index

    one, two = running.judge_many(endless(1)), running.judge_many(endless(2))
    for _ in range(20):
        assert (next(one).index, next(two).index) == (1, 2)
    assert max(taken) <= running.look_ahead + 20


def test_problems_that_share_a_prompt_are_judged_on_their_own_tests(running):
    other = adding(("1 2\n", "-1"))
    assert other.id == CODE.id
    scores = running.judge_many([(CODE, fenced(ADD), 0), (other, fenced(ADD), 1)])
    assert [s.verdict for s in scores] == ["AC", "WA"]


def test_broken_tests_and_an_unreadable_gold_are_unscored(running):
    score = running.judge(adding(), fenced(ADD))
    assert (score.verdict, score.reward, score.correct, score.pass_rate) == ("IE", None, None, None)
    assert "no tests" in score.reason
    gold = Problem(domain="math", prompt="?", answer=r"\frac{1}{")
    assert running.judge(gold, boxed("7")).verdict == "IE"
    assert running.judge(gold, "no box").verdict == "WA"


def test_integers_and_words_start_no_process():
    with Judge(SETTINGS) as fresh:
        list(fresh.judge_many((INTEGER, boxed(str(i)), i) for i in range(100)))
        for pool in (fresh._math, fresh._code):
            assert isinstance(pool, WorkerPool)
            assert pool._pool is None


WITHOUT_BUBBLEWRAP = """
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
from klear.eval.sandbox import SandboxUnavailable
tests = {"kind": "stdin", "cases": [{"input": "", "output": ""}]}
code = Problem(domain="code", prompt="nothing", tests=tests)
root = Problem(domain="math", prompt="root", answer="2x")
with Judge(JudgeSettings(runtime=JudgeRuntime(workers=1))) as judge:
    assert judge.judge(root, r"\\boxed{x+x}").verdict == "AC"
    for ask in (judge.check_sandbox, lambda: judge.judge(code, "```python\\n1\\n```")):
        try:
            ask()
        except SandboxUnavailable as error:
            print(error)
"""


def test_a_missing_sandbox_stops_the_work_with_the_fix_and_math_needs_none():
    environment = os.environ | {"PATH": "/nonexistent"}
    output = output_of(sys.executable, "-c", WITHOUT_BUBBLEWRAP, env=environment)
    first, second = output.splitlines()
    assert "apt-get install bubblewrap" in first
    assert second == first


def test_without_a_sandbox_every_code_score_says_so():
    settings = JudgeSettings(sandbox="none", runtime=RUNTIME)
    with Judge(settings) as fresh:
        texts = [fenced(ADD), fenced("print(7)"), fenced("print(")]
        scores = list(fresh.judge_many((CODE, text, 0) for text in texts))
    assert [s.verdict for s in scores] == ["AC", "WA", "CE"]
    assert all("unsandboxed" in s.reason for s in scores)


def test_a_deadline_that_passes_twice_is_unscored():
    pool = WorkerPool("math", 1)
    result = pool.submit(0.05, pickle.dumps(("1+x", "x^2+" * 200 + "1")))
    try:
        with pytest.raises(NoVerdict, match=r"no verdict in 0\.05 s, 2 times"):
            result()
    finally:
        pool.close()


def test_importing_the_judge_loads_neither_sympy_nor_torch():
    code = "import sys, klear.eval.judge.judge; print({'sympy', 'torch'} & set(sys.modules))"
    assert output_of(sys.executable, "-c", code) == "set()\n"


CASES = [{"input": str(i), "output": str(i)} for i in range(40)]
SUITE = TestSuite.model_validate({"kind": "stdin", "cases": CASES})
MAPS = ("soft", "all_or_nothing", "klear-code")

shares = st.integers(0, 16).map(lambda passed: passed / 16)


@st.composite
def rewards(draw) -> RewardSettings:
    code = draw(st.sampled_from(MAPS))
    lowest = 0.0 if code == "soft" else -1.0
    return RewardSettings(
        code=code,
        unclosed_think=draw(st.floats(-5, -1)),
        code_unclosed_think=draw(st.floats(-5, lowest)),
    )


def reward_of(settings: RewardSettings, domain: str, share: float, closed: bool) -> float:
    if domain == "math":
        return settings.of_math(share == 1, closed)
    return settings.of_code(share == 1, share, closed)


@given(rewards(), shares, shares)
def test_more_tests_never_pay_less_and_no_closed_think_block_no_more_than_wrong(settings, one, two):
    low, high = sorted((one, two))
    assert reward_of(settings, "code", low, True) <= reward_of(settings, "code", high, True)
    for domain, share in (("code", one), ("math", 0.0), ("math", 1.0)):
        assert reward_of(settings, domain, share, False) <= reward_of(settings, domain, 0.0, True)


@pytest.mark.parametrize(
    ("code", "of_none", "of_three_quarters"),
    [("soft", 0.0, 0.75), ("all_or_nothing", -1.0, -1.0), ("klear-code", -1.0, 0.5)],
)
def test_the_maps_of_the_share_of_tests_passed(code, of_none, of_three_quarters):
    rewards = [reward_of(RewardSettings(code=code), "code", x, True) for x in (0.0, 0.75, 1.0)]
    assert rewards == [of_none, of_three_quarters, 1.0]


def test_settings_that_pay_for_the_wrong_thing_are_refused():
    more = ({"code_unclosed_think": -0.5, "code": code} for code in MAPS[1:])
    for settings in ({"unclosed_think": -0.5}, {"code_unclosed_think": 0.5}, *more):
        with pytest.raises(ValidationError, match="unclosed_think"):
            RewardSettings.model_validate(settings)


def test_siblings_share_their_tests_and_over_the_steps_every_test_is_drawn():
    suites = [chosen_suite(SUITE, "p", 8, step) for step in range(60)]
    assert suites == [chosen_suite(SUITE, "p", 8, step) for step in range(60)]
    drawn = [tuple(case.model_dump_json() for case in suite.cases) for suite in suites]
    assert {len(set(draw)) for draw in drawn} == {8}
    assert chosen_suite(SUITE, "p", None) == SUITE
    assert len(set(drawn)) > 50
    assert len({case for draw in drawn for case in draw}) == len(CASES)


@pytest.mark.parametrize(
    ("prompt", "gold", "answer", "verdict"),
    [
        ("Find the perimeter in terms of $s$.", "3s", "3", "WA"),
        ("Find the perimeter in terms of $s$.", "3", "3s", "WA"),
        (r"\[P = 5h\] Find it in terms of \[h\].", "4h", "4", "WA"),
        ("Find the perimeter for $$s$$.", "4s", "4", "WA"),
        ("A 5$ ticket and $x$$y$: how many seconds?", "4", "4s", "AC"),
        ("Find the force by $m$ and $g$.", "3mg", "3", "WA"),
        ("Find the force by $m$ and $g$.", "3mg", "3gm", "AC"),
        ("Find the force by $m$ and $g$.", r"\frac{mg}{2}", r"\frac12 mg", "AC"),
        ("Find the dose for $x$.", r"3\text{ mg}", "3", "AC"),
        ("Find the height for side $s$.", r"\frac{s\sqrt{3}}{2}", r"\frac{\sqrt{3}}{2}s", "AC"),
        ("It falls from $5 m$. For how many seconds?", "3", "3s", "AC"),
        ("A body of mass $m$ went how far?", "12", r"12\text{ m}", "AC"),
    ],
)
def test_a_letter_of_the_problem_is_no_unit(running, prompt, gold, answer, verdict):
    problem = Problem(domain="math", prompt=prompt, answer=gold)
    assert running.judge(problem, boxed(answer)).verdict == verdict
