"""States of task runs reach Prefect as events, which are lost with a server that dies.

Prefect's client sends the latest ones again when it next has something to say. What the server had
taken and not yet written, or what came up while nobody answered and nothing came after, is gone: on
the page of the run a stage is missing, or Pending for ever. So a run remembers them, and if Prefect
was away meanwhile, says them again at its end. Prefect takes an event that it knows for what it is.
"""

import logging
import threading
from weakref import WeakSet

from prefect.client.orchestration import get_client
from prefect.events import Event
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker

from tasks import prefect_away

PATIENCE_S = 30.0  # for what is about to be said, with a server that is there
_OF_TASK_RUNS = "prefect.task-run."
_told: list[Event] = []
_connected: WeakSet[PrefectEventsClient] = WeakSet()
_send = EventsWorker.send
_reconnect = PrefectEventsClient._reconnect


def remember_task_events() -> None:
    """For this process; safe to repeat."""
    EventsWorker.send = _remembering  # type: ignore[method-assign]
    PrefectEventsClient._reconnect = _noticing  # type: ignore[method-assign]


def tell_again_if_prefect_was_away(flow_run: str) -> None:
    """At the end of a run, whose task runs have all ended. Waits for a Prefect that is away.

    Best effort: what it could not say is missing on a page, and the run has its results.
    """
    try:
        with get_client(sync_client=True) as client:
            client.read_flow_run(flow_run)  # type: ignore[arg-type]
        worker = EventsWorker.instance()
        _wait_until_empty(worker)  # a connection that was lost shows when it is used
        events = _told[:]
        del _told[: len(events)]
        if prefect_away.was_noticed():
            for event in events:
                _send(worker, event)
    except Exception as error:
        logging.getLogger("klear").warning("states of stages not said again: %s", error)


def _wait_until_empty(worker: EventsWorker) -> None:
    waits = threading.Thread(target=worker.wait_until_empty, daemon=True)
    waits.start()
    waits.join(PATIENCE_S)


def _remembering(self: EventsWorker, item: Event) -> None:
    if item.event.startswith(_OF_TASK_RUNS):
        _told.append(item)
    _send(self, item)


async def _noticing(self: PrefectEventsClient) -> None:
    """A connection that is opened once more had been lost."""
    if self in _connected:
        prefect_away.notice()
    _connected.add(self)
    await _reconnect(self)
