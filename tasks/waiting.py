"""A stage that waits for a person: what its task run shows meanwhile, and once there is an answer.

Prefect can pause a run, not a task. The stage's task run therefore ends when the question comes up,
as paused and not as failed; the answer makes it approved, refused or, where none came, crashed.
"""

import logging
from contextlib import nullcontext

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, task_run
from prefect.states import Completed, Crashed, Failed, Paused

from tasks.prefect_away import at_once

WAITING = "WaitingForApproval"


class Waits(RuntimeError):
    """What a stage raises that a person may answer. `task_run` is the one that shows it, if any."""

    task_run: str = ""


def somebody_is_asked() -> bool:
    """Whether this run came from a form, so that its page is where people look."""
    return deployment.id is not None


def waiting(error: Waits) -> State[None]:
    """The state of the current task run until `answered`."""
    error.task_run = str(task_run.id)
    return Paused(name=WAITING, message=str(error))


def answered(error: Waits, approved: bool | None, message: str = "") -> None:
    """Settle the task run that waited; None: nobody answered. Best effort, it is only shown."""
    if approved is None:
        state: State[None] = Crashed(name="NotAnswered", message=message or str(error))
    elif approved:
        state = Completed(name="Approved", message=message or str(error))
    else:
        state = Failed(name="Refused", message=message or str(error))
    patience = at_once() if approved is None else nullcontext()  # the run ends: nobody waits
    try:
        with patience, get_client(sync_client=True) as client:
            client.set_task_run_state(error.task_run, state, force=True)  # type: ignore[arg-type]
    except Exception as problem:
        logging.getLogger("klear").debug("the answer is not shown on its task: %s", problem)
