"""What operators do with many messages goes on beside one that is damaged: it is passed over, and the result does not have it."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.broker.queues.message_search import MessageSearch
from celery_redis_plus.broker.queues.messages import Messages


@pytest.fixture(params=["ready", "delayed"])
def tags(request, broker):
    """Three messages, of which the second has a key of another type."""
    broker.declare("q", "elsewhere")
    broker.publish("q", b"1", b"2", b"3", eta="+60000" if request.param == "delayed" else 0)
    of = broker.keys.queue("q")
    found = broker.client.zrange(getattr(of, request.param), 0, -1)
    broker.client.delete(of.message + found[1])
    broker.client.set(of.message + found[1], "foreign")
    return [tag.decode() for tag in found]


@pytest.fixture
def messages(broker):
    return Messages(broker.commands, broker.keys, dead_letter_max=10)


@pytest.mark.parametrize("dead_letter", [False, True])
def test_the_others_are_cancelled(broker, messages, tags, dead_letter):
    assert messages.cancel("q", tags, dead_letter=dead_letter) == [tags[0], tags[2]]
    assert broker.client.zcard("dead:{q}") == 2 * dead_letter
    assert broker.client.get(f"message:{{q}}:{tags[1]}") == b"foreign"


def test_the_others_are_moved(broker, messages, tags):
    moved = [messages.move("q", tag, "elsewhere") for tag in tags]
    assert [bool(tag) for tag in moved] == [True, False, True]
    assert messages.cancel("elsewhere", [tag for tag in moved if tag]) == [moved[0], moved[2]]


def test_the_others_get_another_time(messages, tags):
    assert [messages.reschedule("q", tag, "+1000") for tag in tags] == [True, False, True]


def test_it_is_found_and_not_read(messages, tags):
    info = messages.find("q", tags[1])
    assert info is not None
    assert info.state in ("PENDING", "DELAYED")
    assert messages.read("q", tags[1]) is None
    search = MessageSearch(messages, lambda: ["q"])
    assert [search.cancel(tag, on_removed=lambda *_: None) for tag in tags] == [True, False, True]


def test_a_search_for_a_task_passes_over_it(broker, messages, tags):
    search = MessageSearch(messages, lambda: ["q"])
    assert search.find("a task id that none has") is None
    assert messages.cancel("q", tags, dead_letter=True) == [tags[0], tags[2]]
    letters = DeadLetters(broker.commands, broker.keys)
    broker.client.delete(f"message:{{q}}:{tags[0]}")
    broker.client.set(f"message:{{q}}:{tags[0]}", "foreign")
    assert [letter.tag for letter in letters.read("q", tags)] == [tags[2]]
    assert letters.read("q", []) == []


def test_one_whose_place_is_no_whole_number_is_cancelled_and_not_moved(broker, messages):
    broker.declare("q", "elsewhere")
    broker.publish("q", b"1")
    (tag,) = (tag.decode() for tag in broker.client.zrange("queue:{q}", 0, -1))
    broker.client.zincrby("queue:{q}", 0.5, tag)
    assert messages.move("q", tag, "elsewhere") is None
    assert messages.reschedule("q", tag, 0) is False
    assert messages.cancel("q", [tag]) == [tag]
