"""Approving a cost on the command line; test_approval_deployed.py has a run from the form."""

from klear.configs.loading import load_profile
from klear.configs.settings.base import key_of
from klear.flows.stages import approve_all


def test_the_option_approves_every_stage_that_asks_an_engine_and_changes_no_key():
    before = load_profile("tiny", ["distill.engine.runtime.approve_above=10"])
    after = approve_all(before, 30)
    runtime = after.distill.engine.runtime
    assert (runtime.approve_above, runtime.approved_cost) == (10, 30)
    assert after.sample.engine.runtime.approved_cost == 30
    assert after.rate is None
    assert key_of(after) == key_of(before)
