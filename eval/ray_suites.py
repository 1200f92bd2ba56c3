"""Test suites on their way to judge workers: a large one reaches a node once, not once an answer.

It lies in Ray's object store, which the workers of a node share. Of one judge, those of the answers
under way and those sent last take a share of the smallest store and no more: whoever sends another
waits until an answer is known. A suite that is larger than the share goes alone.
"""

import hashlib
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from eval.ray_cluster import POLL_S

_LARGE = 128 << 10
_SHARE = 0.4


class Sent(NamedTuple):
    """A task's payload; a first argument that is apart has a name and a reference to it."""

    payload: bytes
    key: bytes = b""
    suite: tuple[Any, ...] = ()


@dataclass
class _Suite:
    sent: tuple[Any, ...]
    size: int
    answers: int = 0
    """Under way, so that it must stay."""


class SharedSuites:
    """The large suites in the store, by what they are; used last is last. Thread-safe."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        stores = [n["Resources"]["object_store_memory"] for n in ray.nodes() if n["Alive"]]
        self.most = int(_SHARE * min(stores))
        self.kept: OrderedDict[bytes, _Suite] = OrderedDict()
        self.bytes = 0
        self._changed = threading.Condition()

    def send(self, payload: bytes, waiting: Callable[[], None] = lambda: None) -> Sent:
        """`payload` as it is, or what is left of it beside a large first argument.

        Calls `waiting` every few seconds until there is room. What was sent is to be released.
        """
        if len(payload) < _LARGE:
            return Sent(payload)
        suite, *others = pickle.loads(payload)
        packed = pickle.dumps(suite)
        if len(packed) < _LARGE:
            return Sent(payload)
        key, rest = hashlib.blake2b(packed, digest_size=16).digest(), pickle.dumps(others)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._has_room(key, len(packed)), POLL_S):
                    return Sent(rest, key, self._shared(key, packed))
            waiting()

    def _has_room(self, key: bytes, size: int) -> bool:
        """Whether the suite is there or may be put; those that no answer needs make room for it."""
        if key in self.kept:
            return True
        for idle in [k for k, suite in self.kept.items() if not suite.answers]:
            if self.bytes + size <= self.most:
                break
            self.bytes -= self.kept.pop(idle).size
        return not self.kept or self.bytes + size <= self.most

    def _shared(self, key: bytes, packed: bytes) -> tuple[Any, ...]:
        if key not in self.kept:
            self.kept[key] = _Suite((self._ray.put(packed),), len(packed))
            self.bytes += len(packed)
        self.kept.move_to_end(key)
        self.kept[key].answers += 1
        return self.kept[key].sent

    def release(self, sent: Sent) -> None:
        """Its answer is known."""
        with self._changed:
            if sent.key in self.kept:
                self.kept[sent.key].answers -= 1
                self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self.kept.clear()
            self.bytes = 0
            self._changed.notify_all()


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
