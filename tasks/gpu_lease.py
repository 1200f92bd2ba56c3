"""A slot of the Prefect concurrency limit `klear-gpu`, held by a lease that a thread renews.

Best effort: where the limit or the server is missing nobody is held up, for the lock files of
tasks.gpu_slot are what keeps two stages off one GPU. Prefect's own context manager is not used:
it waits without a word, and ends the run when the server is away for a minute.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client

from tasks.prefect_away import at_once

GPU_LIMIT = "klear-gpu"
LEASE_S = 60.0
RENEW_EVERY_S = 15.0
LOCKED = 423


@contextmanager
def leased(wait: Callable[[], None]) -> Iterator[None]:
    """Hold a slot; `wait()` is called between two attempts while all are taken."""
    with at_once(), get_client(sync_client=True) as client:
        lease = _take(client)
        while lease is _TAKEN:
            wait()
            lease = _take(client)
    if lease is None or lease is _TAKEN:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_renew, args=(lease, over), name="gpu-lease", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with suppress(Exception), at_once(), get_client(sync_client=True) as client:
            client.release_concurrency_slots_with_lease(lease)


_TAKEN = UUID(int=0)


def _take(client: SyncPrefectClient) -> UUID | None:
    """A lease; _TAKEN if somebody has the slot, None where there is no limit or no server."""
    try:
        said = client.increment_concurrency_slots_with_lease(
            [GPU_LIMIT], slots=1, mode="concurrency", lease_duration=LEASE_S
        ).json()
    except httpx.HTTPStatusError as error:
        if error.response.status_code == LOCKED:
            return _TAKEN
        return _unlimited(error)
    except httpx.HTTPError as error:
        return _unlimited(error)
    return UUID(said["lease_id"]) if said["limits"] else None


def _unlimited(error: Exception) -> None:
    logging.getLogger("klear").warning("no slot of %s from Prefect: %s", GPU_LIMIT, error)


def _renew(lease: UUID, over: threading.Event) -> None:
    """A lease that lapsed while the server was away is not taken again: the lock file holds."""
    while not over.wait(RENEW_EVERY_S):
        try:
            with get_client(sync_client=True) as client:
                client.renew_concurrency_lease(lease, LEASE_S)
        except Exception as error:
            logging.getLogger("klear").debug("lease of %s not renewed: %s", GPU_LIMIT, error)
