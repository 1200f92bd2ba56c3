"""How far a piece of work is: whoever does it reports, whoever runs it listens.

Code may call `report(done, total, note)` as often as it likes; listeners decide how often to look.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float, float, str], None]
_listener: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)


def report(done: float, total: float, note: str = "") -> None:
    """Tell the listener of this context, if there is one, that `done` of `total` is finished."""
    if listener := _listener.get():
        listener(done, total, note)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send what is reported inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
