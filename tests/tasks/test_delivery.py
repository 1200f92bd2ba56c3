"""Messages arrive in order, once each, whatever the server does meanwhile."""

import atexit
import logging
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tasks import delivery
from tasks.delivery import Delivery


class Away(Exception):
    pass


class Stumbled(Exception):
    pass


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE_S", 0.02)


def courier() -> Delivery:
    return Delivery(
        lambda error: isinstance(error, Away), lambda error: isinstance(error, Stumbled)
    )


def test_messages_arrive_in_the_order_in_which_they_were_put():
    heard: list[int] = []
    d = courier()
    for i in range(100):
        d.put("number", lambda i=i: heard.append(i))
    assert d.flush(60)
    assert heard == list(range(100))


def test_what_is_put_while_the_server_is_away_arrives_when_it_is_back():
    heard: list[int] = []
    back = threading.Event()

    def hear(i: int) -> None:
        if not back.is_set():
            raise Away
        heard.append(i)

    d = courier()
    for i in range(3):
        d.put("number", lambda i=i: hear(i))
    assert not d.flush(0.1)
    back.set()
    assert d.flush(60)
    assert heard == [0, 1, 2]


def test_a_refused_message_is_told_in_the_log_and_holds_up_no_other(caplog):
    heard: list[str] = []
    d = courier()

    def refuse() -> None:
        raise ValueError("no such column")

    with caplog.at_level(logging.WARNING, "klear"):
        d.put("the note", refuse)
        d.put("next", lambda: heard.append("next"))
        assert d.flush(60)
    assert heard == ["next"]
    assert d.refused == 1
    assert "refused the note: no such column" in caplog.text


def test_a_message_that_cannot_wait_overtakes_all_but_the_one_being_sent():
    heard: list[str] = []
    hold, started = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        hold.wait(60)
        heard.append("first")

    d = courier()
    d.put("first", slow)
    assert started.wait(60)
    d.put("second", lambda: heard.append("second"))
    d.put("urgent", lambda: heard.append("urgent"), soon=True)
    hold.set()
    assert d.flush(60)
    assert heard == ["first", "urgent", "second"]


def test_nobody_waits_for_a_server_that_is_away():
    d = courier()

    def never() -> None:
        raise Away

    d.put("lost", never)
    assert not d.flush(0.05)


@pytest.mark.parametrize("failures", [1, delivery.STUMBLES - 1])
def test_a_server_that_stumbles_hears_it_when_it_works_again(failures: int):
    tell = Mock(side_effect=[*[Stumbled()] * failures, None])
    d = courier()
    d.put("the note", tell)
    assert d.flush(60)
    assert (tell.call_count, d.refused) == (failures + 1, 0)


def test_a_message_that_the_server_always_fails_at_holds_up_no_other():
    fail, tell = Mock(side_effect=Stumbled), Mock()
    d = courier()
    d.put("the note", fail)
    d.put("next", tell)
    assert d.flush(60)
    assert (fail.call_count, d.refused) == (delivery.STUMBLES, 1)
    tell.assert_called_once_with()


def test_a_refusal_after_a_stumble_is_a_refusal():
    tell = Mock(side_effect=[Stumbled(), ValueError("no such column"), None])
    d = courier()
    d.put("the note", tell)
    assert d.flush(60)
    assert (tell.call_count, d.refused) == (2, 1)


def test_a_server_that_is_away_for_many_tries_has_not_refused():
    tell = Mock(side_effect=[*[Away()] * (2 * delivery.STUMBLES), None])
    d = courier()
    d.put("the note", tell)
    assert d.flush(60)
    assert (tell.call_count, d.refused) == (2 * delivery.STUMBLES + 1, 0)


def test_a_closed_delivery_tells_the_rest_ends_its_thread_and_can_be_used_again(
    monkeypatch: pytest.MonkeyPatch,
):
    at_exit: list[Callable[..., object]] = []
    monkeypatch.setattr(atexit, "register", lambda call, *_: at_exit.append(call))
    monkeypatch.setattr(atexit, "unregister", at_exit.remove)
    hold, heard = threading.Event(), Mock()
    d = courier()
    for round_, hear in enumerate((lambda: hold.wait(60), heard)):
        d.put("first", hear)
        d.put("last", lambda round_=round_: heard(round_))
        thread = d._thread
        assert thread is not None
        assert at_exit == [d.flush]
        d.close()
        assert d._messages or round_
        hold.set()
        assert d.flush(60)
        thread.join(60)
        assert not thread.is_alive()
        assert at_exit == []
    assert [call.args for call in heard.call_args_list] == [(0,), (), (1,)]


def test_closing_what_never_spoke_changes_nothing():
    d, heard = courier(), Mock()
    d.close()
    d.put("first", heard)
    thread = d._thread
    assert thread is not None
    assert d.flush(60)
    d.put("second", heard)
    assert d.flush(60)
    assert d._thread is thread
    assert heard.call_count == 2
