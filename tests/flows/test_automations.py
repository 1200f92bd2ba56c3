"""The rule that buries silent runs spares those that ended and those that cannot be heard."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger
from prefect.states import Cancelled, Completed, Crashed, Failed

from configs.machine import Machine
from flows.servers.automations import ZOMBIES, register_automations, zombies


def trigger(minutes: float) -> EventTrigger:
    rule = zombies(minutes).trigger
    assert isinstance(rule, EventTrigger)
    return rule


def test_every_end_of_a_run_ends_the_wait_for_its_next_heartbeat():
    ends = [s().name for s in (Completed, Failed, Cancelled, Crashed)]
    ends.append("TimedOut")  # what Prefect calls the failure of a run past its time limit
    assert {f"prefect.flow-run.{name}" for name in ends} <= set(trigger(5).expect)


def test_a_run_outlives_an_outage_of_the_server_of_some_minutes(tmp_path):
    machine = Machine(home=tmp_path)
    assert trigger(machine.zombie_minutes).within >= timedelta(minutes=30)


def test_a_run_that_ended_is_left_as_it_ended():
    (buried,) = zombies(5).actions
    assert isinstance(buried, ChangeFlowRunState)
    assert (buried.state, buried.force) == (StateType.CRASHED, False)


class Server:
    """What Prefect keeps of automations."""

    def __init__(self) -> None:
        self.there: dict[UUID, Automation] = {}
        self.changes = 0

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None: ...

    def read_automations_by_name(self, name: str) -> list[Automation]:
        return [a for a in self.there.values() if a.name == name]

    def create_automation(self, automation: AutomationCore) -> None:
        self._keep(uuid4(), automation)

    def update_automation(self, there: UUID, automation: AutomationCore) -> None:
        self._keep(there, automation)

    def delete_automation(self, there: UUID) -> None:
        del self.there[there]

    def _keep(self, name: UUID, automation: AutomationCore) -> None:
        self.changes += 1
        told = automation.model_dump(mode="json")  # as it travels
        self.there[name] = Automation.model_validate({**told, "id": name})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(f"flows.servers.automations.{get_client.__name__}", lambda **_: found)
    return found


def test_registering_again_forgets_no_run_whose_silence_is_being_counted(server, tmp_path):
    for _ in range(2):
        register_automations(Machine(home=tmp_path, zombie_minutes=40))
    assert server.changes == 1
    register_automations(Machine(home=tmp_path, zombie_minutes=50))
    assert server.changes == 2
    (rule,) = server.read_automations_by_name(ZOMBIES)
    assert rule.trigger == trigger(50)


def test_a_rule_that_was_switched_off_in_the_ui_stays_off(server, tmp_path):
    register_automations(Machine(home=tmp_path, zombie_minutes=40))
    (rule,) = server.read_automations_by_name(ZOMBIES)
    server.there[rule.id] = rule.model_copy(update={"enabled": False})
    register_automations(Machine(home=tmp_path, zombie_minutes=50))
    (rule,) = server.read_automations_by_name(ZOMBIES)
    assert (rule.enabled, rule.trigger) == (False, trigger(50))
