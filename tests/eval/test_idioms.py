"""Legitimate ways to read, write and return that the judge accepts.

The rows of idioms.jsonl: a program, the `function` that tests call if they call one, and its cases.
An expected text `line*1000` stands for a thousand such lines.
"""

import json
from pathlib import Path

import pytest

from configs.judging import JudgeSettings
from eval.records import TestSuite
from eval.sandbox import Sandbox
from eval.verify_code import judge_program

IDIOMS = [
    json.loads(line) for line in Path(__file__).with_name("idioms.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("bubblewrap") as running:
        yield running


def suite_of(idiom: dict) -> TestSuite:
    if "function" in idiom:
        calls = [{"args": given, "output": output} for given, output in idiom["cases"]]
        return TestSuite.model_validate(
            {"kind": "call", "fn_name": idiom["function"], "cases": calls}
        )
    pairs = [{"input": given, "output": repeated(output)} for given, output in idiom["cases"]]
    return TestSuite.model_validate({"kind": "stdin", "cases": pairs})


def repeated(output: str) -> str:
    line, star, times = output.rpartition("\n*")
    return (line + "\n") * int(times) if star else output


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom["name"])
def test_a_legitimate_idiom_is_accepted(sandbox, idiom):
    result = judge_program(
        sandbox, suite_of(idiom), idiom["name"], idiom["program"], JudgeSettings()
    )
    assert result.verdict == "AC", result.reason
