"""The rule that crashes silent runs spares those that ended and those that cannot be heard."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger
from prefect.states import Cancelled, Completed, Crashed, Failed

from configs.machine import Machine
from flows.servers import registration
from flows.servers.registration import CRASH_SILENT, crash_silent, register_automations


def trigger(minutes: float) -> EventTrigger:
    rule = crash_silent(minutes).trigger
    assert isinstance(rule, EventTrigger)
    return rule


def test_every_end_of_a_run_ends_the_wait_for_its_next_heartbeat():
    ends = [s().name for s in (Completed, Failed, Cancelled, Crashed)]
    ends.append("TimedOut")  # what Prefect calls the failure of a run past its time limit
    assert {f"prefect.flow-run.{name}" for name in ends} <= set(trigger(5).expect)


def test_a_run_outlives_an_outage_of_the_server_and_stays_as_it_ended(tmp_path):
    machine = Machine(home=tmp_path)
    assert trigger(machine.zombie_minutes).within >= timedelta(minutes=30)
    (action,) = crash_silent(5).actions
    assert isinstance(action, ChangeFlowRunState)
    assert (action.state, action.force) == (StateType.CRASHED, False)


class Server(dict[UUID, Automation]):
    """What Prefect keeps of automations."""

    changes = 0

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None: ...

    def read_automations_by_name(self, name: str) -> list[Automation]:
        return [a for a in self.values() if a.name == name]

    def create_automation(self, automation: AutomationCore) -> None:
        self.update_automation(uuid4(), automation)

    def update_automation(self, there: UUID, automation: AutomationCore) -> None:
        self.changes += 1
        sent = automation.model_dump(mode="json")  # as it travels
        self[there] = Automation.model_validate({**sent, "id": there})


def test_registering_again_counts_on_and_leaves_a_rule_off_that_was_switched_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path
):
    server = Server()
    monkeypatch.setattr(registration, "get_client", lambda **_: server)
    for _ in range(2):  # an update would forget the runs whose silence is being counted
        register_automations(Machine(home=tmp_path, zombie_minutes=40))
    assert server.changes == 1

    (rule,) = server.read_automations_by_name(CRASH_SILENT)
    server[rule.id] = rule.model_copy(update={"enabled": False})
    register_automations(Machine(home=tmp_path, zombie_minutes=50))
    (rule,) = server.read_automations_by_name(CRASH_SILENT)
    assert (rule.enabled, rule.trigger) == (False, trigger(50))
