"""`celery-redis-plus groups` and `BrokerAdmin.set_group` on a real server."""

from __future__ import annotations

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import declare, publish


@pytest.fixture
def grouped(channel):
    """A queue `q` with five messages of the group `a`, two of `b`, and one of each in work at most."""
    declare(channel, "q", arguments={"x-group-concurrency": 1})
    for group, count in (("a", 5), ("b", 2)):
        for number in range(count):
            publish(channel, "q", f"{group}{number}", headers={"x-message-group": group})
    return channel


def get(channel, count):
    messages = [channel.basic_get("q") for _ in range(count)]
    return [message and message.payload for message in messages]


def test_groups_are_listed_those_with_the_most_held_messages_first(cli, grouped):
    assert cli("groups", "q", "--json").lines == [
        {"group": "a", "held": 4, "admitted": 1, "concurrency": None, "weight": None, "paused": False},
        {"group": "b", "held": 1, "admitted": 1, "concurrency": None, "weight": None, "paused": False},
    ]
    lines = [line.split() for line in cli("groups", "q").out.splitlines()]
    assert lines[1:] == [["a", "4", "1", "-", "-", "-"], ["b", "1", "1", "-", "-", "-"]]


def test_a_concurrency_of_a_group_admits_at_once_and_its_default_holds_again(cli, grouped):
    assert cli("groups", "q", "a", "--concurrency", "3", "--json").json["admitted"] == 3
    assert get(grouped, 5) == ["a0", "b0", "a1", "a2", None]
    cli("groups", "q", "a", "--default")
    assert cli("groups", "q", "a", "--json").json["concurrency"] is None
    assert get(grouped, 1) == [None]


def test_a_paused_group_gets_nothing_and_goes_on_where_it_was(cli, grouped):
    cli("groups", "q", "a", "--pause")
    taken = [grouped.basic_get("q") for _ in range(2)]
    for message in taken:
        message.ack()
    # What was ready or in work when it was paused goes on.
    assert [message.payload for message in taken] == ["a0", "b0"]
    assert get(grouped, 2) == ["b1", None]
    assert [line["paused"] for line in cli("groups", "q", "--json").lines] == [True, False]
    cli("groups", "q", "a", "--default")
    assert get(grouped, 2) == ["a1", None]


def test_a_weight_gives_a_group_more_of_each_round(cli, channel):
    declare(channel, "q", arguments={"x-fair": True})
    cli("groups", "q", "a", "--weight", "3")
    for number in range(8):
        for group in "ab":
            publish(channel, "q", f"{group}{number}", headers={"x-message-group": group})
    taken = get(channel, 8)
    assert [sum(body.startswith("b") for body in taken[at : at + 4]) for at in (0, 4)] == [1, 1]


def test_what_makes_no_sense_is_refused(cli, grouped, channel, broker_url):
    declare(channel, "plain")
    assert "GROUP is missing" in cli("groups", "q", "--pause").err
    assert "no other rule" in cli("groups", "q", "a", "--pause", "--default").err
    assert "queue 'plain' has no groups" in cli("groups", "plain", "a", "--pause").err
    with BrokerAdmin(broker_url) as admin, pytest.raises(InvalidArgument, match="weight of a group is 0; allowed"):
        admin.set_group("q", "a", weight=0)
