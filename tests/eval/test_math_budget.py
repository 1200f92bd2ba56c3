r"""Formulas that take for ever: who is to blame, by CPU time."""

import time

import pytest

from eval.math_answers import task as math_task
from eval.math_answers.task import OutOfTime, cpu_seconds, run

ENDLESS = r"\sum_{k=1}^{9999}k!"


@pytest.fixture(autouse=True)
def _little_time(monkeypatch):
    run("1", "2")  # the parser's own start-up
    monkeypatch.setattr(math_task, "_CPU_S", 0.5)
    monkeypatch.setattr(math_task, "_CPU_OF_GOLD_S", 0.5)


def test_an_answer_that_takes_too_long_is_wrong():
    verdict = run("7", ENDLESS)

    assert verdict.verdict == "WA"
    assert "0.5 s of CPU time" in verdict.reason


def test_a_gold_that_takes_too_long_is_unscored():
    assert run(ENDLESS, "7").verdict == "IE"


def busy(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_an_alarm_is_off_when_its_block_ends():
    with pytest.raises(OutOfTime), cpu_seconds(0.05):
        busy(10)
    with cpu_seconds(0.05):
        pass
    busy(0.2)


def test_waiting_costs_no_cpu_time():
    with cpu_seconds(0.2):
        time.sleep(0.5)
