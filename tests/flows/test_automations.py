"""The rule that crashes silent runs spares those that ended and those that cannot be heard."""

from contextlib import nullcontext
from datetime import timedelta
from unittest.mock import Mock
from uuid import uuid4

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, EventTrigger
from prefect.states import Cancelled, Completed, Crashed, Failed

from klear.configs.machine import Machine
from klear.flows.forms import registration
from klear.flows.forms.registration import CRASH_SILENT, automation, register_automations


def test_every_end_of_a_run_ends_the_wait_for_its_next_heartbeat_and_no_end_is_changed(tmp_path):
    rule = automation(CRASH_SILENT, Machine(home=tmp_path).zombie_minutes)
    assert isinstance(rule.trigger, EventTrigger)
    ends = [s().name for s in (Completed, Failed, Cancelled, Crashed)]
    ends.append("TimedOut")  # what Prefect calls the failure of a run past its time limit
    assert {f"prefect.flow-run.{name}" for name in ends} <= set(rule.trigger.expect)
    assert rule.trigger.within >= timedelta(minutes=30)  # it outlives an outage of the server
    (action,) = rule.actions
    assert isinstance(action, ChangeFlowRunState)
    assert (action.state, action.force) == (StateType.CRASHED, False)


def test_what_is_switched_off_stays_off(tmp_path, monkeypatch):
    here = Machine(home=tmp_path)
    same = automation(CRASH_SILENT, here.zombie_minutes).model_dump(mode="json")
    there = Automation.model_validate({**same, "id": uuid4(), "enabled": False})
    client = Mock()
    client.read_automations_by_name.side_effect = lambda name: [there] * (name == CRASH_SILENT)
    monkeypatch.setattr(registration, "get_client", lambda **_: nullcontext(client))
    register_automations(Machine(home=tmp_path, zombie_minutes=99))
    client.create_automation.assert_not_called()
    client.delete_automation.assert_not_called()
    client.update_automation.assert_called_once()
    _, new = client.update_automation.call_args.args
    assert (new.enabled, new.trigger.within) == (False, timedelta(minutes=99))
