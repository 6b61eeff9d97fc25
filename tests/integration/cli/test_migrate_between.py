"""Messages of this transport go to another server or prefix by way of kombu's lists: `migrate --reverse`, `migrate --from`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import kombu
import pytest

from celery_redis_plus.cli.main import main
from tests.support.inbox import Inbox, declare, publish


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = main([*arguments, "--json"])
        return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.parametrize("prefix", ["", "new:"])
def test_messages_move_to_another_database_or_prefix_with_priority_and_time(run, server, broker_url, channel, prefix):
    declare(channel, "shop")
    due = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    publish(channel, "shop", 1, 2, priority=3)
    publish(channel, "shop", 3, priority=9)
    publish(channel, "shop", 4, headers={"task": "shop.pay", "id": "4", "eta": due})
    elsewhere = server.url(1) + f"?global_keyprefix={prefix}"

    given = run("--broker", broker_url, "migrate", "--reverse", "--priorities", "keep")
    assert (given[0], given[1][0]["ready"], given[1][0]["delayed"]) == (0, 3, 1)
    source = ("--from", server.url(0, scheme="redis"), "--from-prefix", "")
    taken = run("--broker", elsewhere, "migrate", *source, "--priorities", "keep", "--declare", "shop")
    assert (taken[0], taken[1][0]["ready"], taken[1][0]["delayed"], taken[1][0]["left"]) == (0, 3, 1, 0)

    with kombu.Connection(elsewhere) as connection:
        there = connection.channel()
        sizes = there.queue_sizes("shop")
        assert (sizes.ready, sizes.delayed) == (3, 1)
        inbox = Inbox(there, "shop")
        inbox.drain(3)
        assert inbox.bodies == [3, 1, 2]
        assert [message.properties["priority"] for message in inbox.messages] == [9, 3, 3]
