"""How far the running stage is: `report(done, total, note)`, seen by whoever listens.

Stages report as often as they like; listeners decide how often to look.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from eval.ray_cluster import on_cluster_wait

Listener = Callable[[float, float, str], None]
_listener: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)


def report(done: float, total: float, note: str = "") -> None:
    """Tell the listener of this stage, if there is one, that `done` of `total` is finished."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total, note)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send what is reported inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        with on_cluster_wait(lambda note: listener(0, 0, note)):
            yield
    finally:
        _listener.reset(token)
