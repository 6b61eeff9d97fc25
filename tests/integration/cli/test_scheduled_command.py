"""`celery-redis-plus scheduled`: delayed messages of all queues by their time."""

from __future__ import annotations

import pytest

from celery_redis_plus.broker.queues import listing
from tests.support.inbox import declare, publish


@pytest.fixture
def delayed(channel):
    """Three delayed messages in `shop.mail`, two in `shop.pay`, in turn; one ready message, one empty queue."""
    declare(channel, "shop.mail", "shop.pay", "idle")
    for number, queue in enumerate(["shop.mail", "shop.pay", "shop.mail", "shop.pay", "shop.mail"], 1):
        headers = {"task": f"task.{number % 2}", "id": f"id-{number}", "x-delay": number * 1_000_000}
        publish(channel, queue, number, headers=headers)
    publish(channel, "shop.pay", "ready")


def test_delayed_messages_of_all_queues_are_listed_by_their_time(cli, delayed, monkeypatch):
    monkeypatch.setattr(listing, "LISTING_PAGE", 2)
    found = cli("scheduled", "--json").lines
    assert [(one["queue"], one["task_id"]) for one in found] == [
        ("shop.mail", "id-1"), ("shop.pay", "id-2"), ("shop.mail", "id-3"), ("shop.pay", "id-4"), ("shop.mail", "id-5"),
    ]  # fmt: skip
    assert sorted(one["due"] for one in found) == [one["due"] for one in found]
    assert {one["state"] for one in found} == {"delayed"}


def test_queue_task_time_and_number_select(cli, delayed):
    def ids(*arguments):
        return [one["task_id"] for one in cli("scheduled", "--json", *arguments).lines]

    assert ids("*.pay") == ["id-2", "id-4"]
    assert ids("--task", "task.1") == ["id-1", "id-3", "id-5"]
    assert ids("--within", "40m") == ["id-1", "id-2"]
    assert ids("--limit", "1") == ["id-1"]
    assert ids("idle") == []
    assert cli("scheduled", "nothing").status == 1


def test_the_table_says_how_long_it_takes_and_how_many_there_are(cli, delayed):
    head, first, *_, last = cli("scheduled", "--limit", "2").out.splitlines()
    assert head.split() == ["DUE", "(UTC)", "IN", "QUEUE", "PRIORITY", "TASK", "OR", "ROUTING", "KEY", "TASK", "ID", "ID"]
    assert first.split()[2:7] == ["16" if "16 min" in first else "17", "min", "shop.mail", "0", "task.1"]
    assert last == "2 of 5 delayed messages"
