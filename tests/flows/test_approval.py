"""Approving a cost on the command line; test_approval_deployed.py has a run from the form."""

import pytest

from klear.configs.loading import load_profile
from klear.configs.settings.base import key_of
from klear.flows.stages import Call, approve_all
from klear.tasks.answers.distill import NeedsApproval


class Costly:
    """Stands in for a stage that needs 30."""

    name = "distill"

    def __call__(self, *_: object, settings) -> str:
        if settings.engine.runtime.approved_cost < 30:
            raise NeedsApproval("80 answers would cost about 25", 10, 29.5)
        return "done"


def test_the_command_line_refuses_in_one_line_that_names_the_option():
    settings = load_profile("tiny").distill
    with pytest.raises(NeedsApproval, match=r"--approve-cost 30") as refused:
        Call(Costly(), (), settings).compute()  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_the_option_approves_every_stage_that_asks_an_engine_and_changes_no_key():
    before = load_profile("tiny", ["distill.engine.runtime.approve_above=10"])
    after = approve_all(before, 30)
    runtime = after.distill.engine.runtime
    assert (runtime.approve_above, runtime.approved_cost) == (10, 30)
    assert after.sample.engine.runtime.approved_cost == 30
    assert after.rate is None
    assert key_of(after) == key_of(before)
    assert Call(Costly(), (), after.distill).compute() == "done"  # type: ignore[arg-type]
