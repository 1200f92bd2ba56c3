"""Every reward map pays the better answer more, and nothing for what was cut off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from configs.loading import load_group
from configs.settings.explain import ConfigError
from configs.settings.judging import JudgeSettings, RewardSettings
from eval.judge.judge import make_score
from eval.programs.verify import chosen_suite
from eval.records import Problem, TestSuite

CASES = [{"input": str(i), "output": str(i)} for i in range(40)]
SUITE = TestSuite.model_validate({"kind": "stdin", "cases": CASES})
CODE = Problem(domain="code", prompt="echo", tests=SUITE)
MATH = Problem(domain="math", prompt="6*7?", answer="42")
MAPS = ("soft", "all_or_nothing", "klear-code")

shares = st.integers(0, 16).map(lambda passed: passed / 16)
finite = st.floats(-3, 3)


@st.composite
def rewards(draw) -> RewardSettings:
    """Any reward settings that are accepted."""
    code = draw(st.sampled_from(MAPS))
    right = draw(finite)
    wrong = draw(st.floats(-4, right))
    lowest = 0.0 if code == "soft" else -1.0
    return RewardSettings(
        math_correct=right,
        math_wrong=wrong,
        code=code,
        unclosed_think=draw(st.floats(-5, wrong)),
        code_unclosed_think=draw(st.floats(-5, lowest)),
    )


def reward_of(settings: RewardSettings, problem: Problem, share: float, closed: bool) -> float:
    verdict = "AC" if share == 1 else "WA"
    judge = JudgeSettings(reward=settings)
    reward = make_score(problem, 0, "", closed, verdict, share, "", 0.0, judge).reward
    assert reward is not None
    return reward


@given(rewards(), shares, shares)
def test_more_tests_never_pay_less_and_no_closed_think_block_no_more_than_wrong(settings, one, two):
    low, high = sorted((one, two))
    assert reward_of(settings, CODE, low, True) <= reward_of(settings, CODE, high, True)
    for problem, share in ((CODE, one), (MATH, 0.0), (MATH, 1.0)):
        assert reward_of(settings, problem, share, False) <= reward_of(settings, problem, 0.0, True)


@pytest.mark.parametrize(
    ("code", "share", "reward"),
    [
        ("soft", 0.75, 0.75),
        ("all_or_nothing", 0.75, -1.0),
        ("all_or_nothing", 0.0, -1.0),
        ("all_or_nothing", 1.0, 1.0),
        ("klear-code", 0.75, 0.5),
        ("klear-code", 0.0, -1.0),
        ("klear-code", 1.0, 1.0),
    ],
)
def test_the_maps_of_the_share_of_tests_passed(code, share, reward):
    assert reward_of(RewardSettings(code=code), CODE, share, True) == reward


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"math_wrong": 2.0}, "math_wrong"),
        ({"unclosed_think": -0.5}, "unclosed_think"),
        ({"code_unclosed_think": -0.5, "code": "klear-code"}, "code_unclosed_think"),
        ({"code_unclosed_think": -0.5, "code": "all_or_nothing"}, "code_unclosed_think"),
        ({"code_unclosed_think": 0.5}, "code_unclosed_think"),
    ],
)
def test_settings_that_pay_for_the_wrong_thing_are_refused(settings, name):
    with pytest.raises(ValidationError, match=name):
        RewardSettings(**settings)


def test_the_old_hard_reward_is_refused_with_the_name_of_the_new_one():
    with pytest.raises(ConfigError, match=r"^reward\.code: hard is gone.*use all_or_nothing"):
        load_group(JudgeSettings, ["reward.code=hard"])


@given(st.integers(0, 10**6), st.text(max_size=20))
def test_siblings_share_their_tests_and_steps_change_them(draw, problem_id):
    chosen = chosen_suite(SUITE, problem_id, 8, draw)
    assert chosen == chosen_suite(SUITE, problem_id, 8, draw)
    assert len({case.model_dump_json() for case in chosen.cases}) == 8
    assert chosen_suite(SUITE, problem_id, None, draw) == SUITE


def test_over_the_steps_every_test_is_drawn():
    suites = [chosen_suite(SUITE, "p", 8, step) for step in range(60)]
    drawn = [tuple(case.model_dump_json() for case in suite.cases) for suite in suites]
    assert len(set(drawn)) > 50
    assert len({case for draw in drawn for case in draw}) == len(CASES)
