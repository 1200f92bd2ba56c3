"""How far a piece of work is: whoever does it reports at will, whoever runs it listens."""

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
