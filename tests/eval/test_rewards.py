"""Every reward map pays the better answer more, and nothing for what was cut off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from klear.configs.settings.judging import RewardSettings
from klear.eval.programs.verify import chosen_suite
from klear.eval.records import TestSuite

CASES = [{"input": str(i), "output": str(i)} for i in range(40)]
SUITE = TestSuite.model_validate({"kind": "stdin", "cases": CASES})
MAPS = ("soft", "all_or_nothing", "klear-code")

shares = st.integers(0, 16).map(lambda passed: passed / 16)


@st.composite
def rewards(draw) -> RewardSettings:
    """Any reward settings that are accepted."""
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
    assert reward_of(RewardSettings(code=code), "code", share, True) == reward


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"unclosed_think": -0.5}, "unclosed_think"),
        ({"code_unclosed_think": -0.5, "code": "klear-code"}, "code_unclosed_think"),
        ({"code_unclosed_think": -0.5, "code": "all_or_nothing"}, "code_unclosed_think"),
        ({"code_unclosed_think": 0.5}, "code_unclosed_think"),
    ],
)
def test_settings_that_pay_for_the_wrong_thing_are_refused(settings, name):
    with pytest.raises(ValidationError, match=name):
        RewardSettings(**settings)


def test_siblings_share_their_tests():
    for draw in (0, 7):
        chosen = chosen_suite(SUITE, "p", 8, draw)
        assert chosen == chosen_suite(SUITE, "p", 8, draw)
        assert len({case.model_dump_json() for case in chosen.cases}) == 8
    assert chosen_suite(SUITE, "p", None) == SUITE


def test_over_the_steps_every_test_is_drawn():
    suites = [chosen_suite(SUITE, "p", 8, step) for step in range(60)]
    drawn = [tuple(case.model_dump_json() for case in suite.cases) for suite in suites]
    assert len(set(drawn)) > 50
    assert len({case for draw in drawn for case in draw}) == len(CASES)
