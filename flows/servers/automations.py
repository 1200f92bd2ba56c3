"""What Prefect does by itself: it marks silent runs as crashed, and tells of failures.

Registered with the forms by `klear up`; the second one only where `KLEAR_WEBHOOK` names an address.
"""

from datetime import timedelta

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from configs.machine import Machine

ZOMBIES, FAILURES = "klear: bury runs that died", "klear: tell of failures"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_BAD_ENDS = {f"prefect.flow-run.{s}" for s in ("Failed", "Crashed", "TimedOut")}
_ENDS = {*_BAD_ENDS, "prefect.flow-run.Completed", "prefect.flow-run.Cancelled"}
_TEXT = (  # what is posted: JSON with one `text`, as chat services take it
    '{"text": {{ ("klear " ~ flow_run.name ~ ": " ~ flow_run.state.name ~ ". " ~ '
    '(flow_run.state.message or "") ~ " " ~ (flow_run | ui_url)) | tojson }}}'
)


def register_automations(machine: Machine) -> list[str]:
    """Create or update them; returns their names. One that is switched off in the UI stays off."""
    wanted = [zombies(machine.zombie_minutes)]
    if machine.webhook.get_secret_value():
        block = Webhook(method="POST", url=machine.webhook, allow_private_urls=True)
        wanted.append(failures(block))
    with get_client(sync_client=True) as client:
        for found in client.read_automations_by_name(FAILURES) if len(wanted) == 1 else ():
            client.delete_automation(found.id)
        for automation in wanted:
            there = client.read_automations_by_name(automation.name)
            if not there:
                client.create_automation(automation)
                continue
            new = automation.model_copy(update={"enabled": there[0].enabled})
            # An update would forget the runs whose silence is being counted.
            if AutomationCore.model_validate(there[0].model_dump(exclude={"id"})) != new:
                client.update_automation(there[0].id, new)
    return [automation.name for automation in wanted]


def zombies(minutes: float) -> AutomationCore:
    """A run that beat and then neither beats nor ends within `minutes` is marked as crashed."""
    trigger = _on_runs(
        after={_HEARTBEAT},
        expect={_HEARTBEAT, *_ENDS},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        within=timedelta(minutes=minutes),
    )
    message = f"no sign of life for {minutes:g} minutes; a retry continues its work"
    # Not forced: what a server missed while it was away arrives late, so a last sign of life may
    # come after the end. Prefect leaves a run alone that is in a final state.
    crashed = ChangeFlowRunState(
        state=StateType.CRASHED, name="Crashed", message=message, force=False
    )
    about = "A run whose process was killed would stay Running for ever"
    return AutomationCore(name=ZOMBIES, description=about, trigger=trigger, actions=[crashed])


def failures(block: Webhook) -> AutomationCore:
    """The address is told of every run that failed or crashed; the block keeps it encrypted."""
    trigger = _on_runs(expect=_BAD_ENDS, posture=Posture.Reactive, within=timedelta(0))
    saved = block.save("klear-webhook", overwrite=True)
    tell = CallWebhook.model_validate({"block_document_id": saved, "payload": _TEXT})
    about = "Posts the name, the state and the reason to the address of KLEAR_WEBHOOK"
    return AutomationCore(name=FAILURES, description=about, trigger=trigger, actions=[tell])


def _on_runs(**about: object) -> EventTrigger:
    match = {"prefect.resource.id": "prefect.flow-run.*"}
    return EventTrigger.model_validate({"match": match, "threshold": 1, **about})
