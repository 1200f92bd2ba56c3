"""Test suites on their way to judge workers: a large one reaches a node once, not once an answer.

It lies in Ray's object store, which the workers of a node share. Those sent last are kept there, no
more bytes of them than the smallest store has.
"""

import hashlib
import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

_LARGE = 128 << 10
_KEPT = 32 << 20


class Sent(NamedTuple):
    """A task's payload; `suite` holds a reference to its first argument if that is apart."""

    payload: bytes
    suite: tuple[Any, ...] = ()


class SharedSuites:
    """The large suites that were sent last, by what they are."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.kept: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def send(self, payload: bytes) -> Sent:
        """`payload` as it is, or what is left of it beside a large first argument."""
        if len(payload) < _LARGE:
            return Sent(payload)
        suite, *others = pickle.loads(payload)
        packed = pickle.dumps(suite)
        if len(packed) < _LARGE:
            return Sent(payload)
        key = hashlib.blake2b(packed, digest_size=16).digest()
        if key in self.kept:
            self.kept.move_to_end(key)
        else:
            self.kept[key] = self._ray.put(packed), len(packed)
            self._bytes += len(packed)
        reference = self.kept[key][0]
        while self._bytes > _KEPT and len(self.kept) > 1:
            self._bytes -= self.kept.popitem(last=False)[1][1]
        return Sent(pickle.dumps(others), (reference,))

    def clear(self) -> None:
        self.kept.clear()
        self._bytes = 0


class _Joined:
    """Pickles as the tuple of all arguments, without unpickling the suite here."""

    def __init__(self, suite: bytes, others: bytes) -> None:
        self._parts = suite, others

    def __reduce__(self) -> tuple[Any, tuple[bytes, bytes]]:
        return join_arguments, self._parts


def join_arguments(suite: bytes, others: bytes) -> tuple[Any, ...]:
    return pickle.loads(suite), *pickle.loads(others)


def payload_of(sent: Sent) -> bytes:
    """In a worker of the cluster: the payload that `SharedSuites.send` was given."""
    if not sent.suite:
        return sent.payload
    import ray

    return pickle.dumps(_Joined(ray.get(sent.suite[0]), sent.payload))
