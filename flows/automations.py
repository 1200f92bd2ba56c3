"""What Prefect does by itself: it buries runs without a sign of life, and tells of failures.

Registered with the forms by `klear up`; the second one only where `KLEAR_WEBHOOK` names an address.
"""

from datetime import timedelta
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from configs.machine import Machine

ZOMBIES, FAILURES = "klear: bury runs that died", "klear: tell of failures"
WEBHOOK_BLOCK = "klear-webhook"
_ANY_RUN = {"prefect.resource.id": "prefect.flow-run.*"}
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = {
    f"prefect.flow-run.{s}" for s in ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut")
}
_BAD_ENDS = {f"prefect.flow-run.{s}" for s in ("Failed", "Crashed", "TimedOut")}
_TEXT = (
    '"klear " ~ flow_run.name ~ ": " ~ flow_run.state.name ~ ". " ~ '
    '(flow_run.state.message or "") ~ " " ~ (flow_run | ui_url)'
)


def register_automations(machine: Machine) -> list[str]:
    """Create or update them; returns their names."""
    with get_client(sync_client=True) as client:
        _put(client, zombies(machine.zombie_minutes))
        if not machine.webhook.get_secret_value():
            _remove(client, FAILURES)
            return [ZOMBIES]
        block = Webhook(method="POST", url=machine.webhook, allow_private_urls=True)
        _put(client, failures(CallWebhook(block_document_id=_saved(block), payload=payload())))
        return [ZOMBIES, FAILURES]


def zombies(minutes: float) -> AutomationCore:
    """A run that beat and then neither beats nor ends within `minutes` is marked as crashed."""
    trigger = EventTrigger(
        after={_HEARTBEAT},
        expect={_HEARTBEAT, *_ENDS},
        match=_ANY_RUN,  # type: ignore[arg-type]
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(minutes=minutes),
    )
    message = f"no sign of life for {minutes:g} minutes; a retry continues its work"
    # Not forced: what a server missed while it was away arrives late, so a last sign of life may
    # come after the end. Prefect leaves a run alone that is in a final state.
    buried = ChangeFlowRunState(
        state=StateType.CRASHED, name="Crashed", message=message, force=False
    )
    return AutomationCore(
        name=ZOMBIES,
        description="A run whose process was killed would stay Running for ever",
        trigger=trigger,
        actions=[buried],
    )


def failures(tell: CallWebhook) -> AutomationCore:
    """`tell` is called for every run that failed or crashed."""
    trigger = EventTrigger(
        expect=_BAD_ENDS,
        match=_ANY_RUN,  # type: ignore[arg-type]
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    return AutomationCore(
        name=FAILURES,
        description="Posts the name, the state and the reason to the address of KLEAR_WEBHOOK",
        trigger=trigger,
        actions=[tell],
    )


def payload() -> str:
    """What is posted: JSON with one `text`, as chat services take it."""
    return f'{{"text": {{{{ ({_TEXT}) | tojson }}}}}}'


def _saved(block: Webhook) -> UUID:
    """The block keeps the address encrypted and hidden."""
    saved = block.save(WEBHOOK_BLOCK, overwrite=True)
    assert isinstance(saved, UUID)  # a coroutine only inside of an event loop
    return saved


def _put(client: SyncPrefectClient, automation: AutomationCore) -> None:
    """One that is switched off in the UI stays off; an equal one is left alone.

    An update starts its memory anew: the runs whose silence it is counting would be forgotten.
    """
    there = client.read_automations_by_name(automation.name)
    if not there:
        client.create_automation(automation)
        return
    wanted = automation.model_copy(update={"enabled": there[0].enabled})
    if AutomationCore.model_validate(there[0].model_dump(exclude={"id"})) != wanted:
        client.update_automation(there[0].id, wanted)


def _remove(client: SyncPrefectClient, name: str) -> None:
    for automation in client.read_automations_by_name(name):
        client.delete_automation(automation.id)
