"""What a benchmark asks, with and without the instruction how to answer."""

import pytest

from configs.settings.evaluation import (
    PAPER_PROTOCOLS,
    WITH_FORMAT,
    BenchmarkProtocol,
    named_protocols,
)
from eval.benchmarks.benchmarks import MATH, STDIN, question
from eval.records import CallCase, Problem, StdinCase, TestSuite

BARE, WITH = BenchmarkProtocol(name="b"), BenchmarkProtocol(name="b", question=WITH_FORMAT)


def code(suite: TestSuite) -> Problem:
    return Problem(domain="code", prompt="Double {n}.", tests=suite)


def test_our_own_checkpoints_are_asked_the_bare_problem():
    assert question(BARE, Problem(domain="math", prompt="1 + 1? {format}", answer="2")) == (
        "1 + 1? {format}"
    )
    assert {p.question for p in PAPER_PROTOCOLS} == {"{prompt}"}


def test_the_instruction_fits_the_way_the_problem_is_judged():
    assert (
        question(WITH, Problem(domain="math", prompt="1 + 1?", answer="2")) == f"1 + 1?\n\n{MATH}"
    )
    stdin = TestSuite(kind="stdin", cases=(StdinCase(input="1", output="2"),))
    assert question(WITH, code(stdin)) == f"Double {{n}}.\n\n{STDIN}"
    call = TestSuite(kind="call", fn_name="double", cases=(CallCase(args=(1,), output=2),))
    assert "`class Solution` with the method `double`" in question(WITH, code(call))


@pytest.mark.parametrize("text", ["Solve this!", "{prompt} and {prompt}"])
def test_a_question_holds_the_problem_exactly_once(text):
    with pytest.raises(ValueError, match="once"):
        BenchmarkProtocol(name="b", question=text)


def test_the_named_benchmarks_are_those_of_table_1_with_the_instruction_and_more():
    known = named_protocols()
    assert {"math500", "livecodebench"} <= set(known)
    for paper in PAPER_PROTOCOLS:
        ours = known[paper.name]
        assert (ours.k, ours.date_from, ours.date_to) == (paper.k, paper.date_from, paper.date_to)
        assert ours.question == WITH_FORMAT
