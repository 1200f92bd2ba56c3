"""How much of Ray's object store the suites of a judge take, with a stand-in for Ray."""

import pickle
import random
import threading
from typing import Any

import pytest

from eval import ray_suites
from eval.ray_suites import Sent, SharedSuites

STORE, LARGER_STORE = 10 << 20, 80 << 20
MEGABYTE = 1 << 20


class Ray:
    """Counts what lies in its store."""

    def __init__(self) -> None:
        self.put_bytes: list[int] = []

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {}}
        alive = [{"Alive": True, "Resources": {"object_store_memory": float(size)}}
                 for size in (LARGER_STORE, STORE)]  # fmt: skip
        return [*alive, gone]

    def put(self, packed: bytes) -> tuple[str, int]:
        self.put_bytes.append(len(packed))
        return "reference", len(self.put_bytes)


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> SharedSuites:
    monkeypatch.setattr(ray_suites, "POLL_S", 0.01)
    return SharedSuites(Ray())


def payload(number: int, size: int = MEGABYTE) -> bytes:
    return pickle.dumps((number.to_bytes(2, "big") * (size // 2), "answer"))


def test_suites_under_way_and_kept_take_a_share_of_the_smallest_store(suites: SharedSuites) -> None:
    rng, under_way = random.Random(1), list[Sent]()
    for _ in range(200):
        under_way.append(suites.send(payload(rng.randrange(8))))
        needed = {sent.key for sent in under_way}
        assert needed <= suites.kept.keys()
        assert suites.bytes == sum(suite.size for suite in suites.kept.values())
        assert suites.bytes <= suites.most == int(0.4 * STORE)
        while len({sent.key for sent in under_way}) > 2 or len(under_way) > 9:
            suites.release(under_way.pop(rng.randrange(len(under_way))))


def test_whoever_sends_one_more_waits_for_an_answer_and_says_so(suites: SharedSuites) -> None:
    first = [suites.send(payload(number)) for number in range(3)]
    waited, sent = threading.Event(), list[Sent]()
    sender = threading.Thread(target=lambda: sent.append(suites.send(payload(3), waited.set)))
    sender.start()
    assert waited.wait(60)
    assert not sent
    assert set(suites.kept) == {one.key for one in first}
    suites.release(first[1])
    sender.join(60)
    assert set(suites.kept) == {first[0].key, first[2].key, sent[0].key}


def test_a_suite_that_is_there_is_sent_at_once_and_put_once(suites: SharedSuites) -> None:
    same = [suites.send(payload(0)) for _ in range(50)]
    assert len({sent.key for sent in same}) == 1
    assert len(suites._ray.put_bytes) == 1


def test_a_suite_larger_than_the_share_goes_alone(suites: SharedSuites) -> None:
    suites.release(suites.send(payload(0)))
    large = suites.send(payload(1, STORE))
    assert set(suites.kept) == {large.key}
    waited = threading.Event()
    sender = threading.Thread(target=suites.send, args=(payload(2), waited.set))
    sender.start()
    assert waited.wait(60)
    suites.release(large)
    sender.join(60)
    assert large.key not in suites.kept


def test_a_judge_that_is_closed_lets_go_of_who_waits(suites: SharedSuites) -> None:
    suites.send(payload(0, STORE))
    waited = threading.Event()
    sender = threading.Thread(target=suites.send, args=(payload(1), waited.set))
    sender.start()
    assert waited.wait(60)
    suites.clear()
    sender.join(60)
    assert not sender.is_alive()


def test_a_small_suite_travels_with_its_answer(suites: SharedSuites) -> None:
    small = payload(0, 1 << 10)
    assert suites.send(small) == Sent(small)
    suites.release(Sent(small))
    assert not suites.kept
