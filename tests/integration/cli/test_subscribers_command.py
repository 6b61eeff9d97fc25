"""`celery-redis-plus subscribers`: who gets broadcasts, and how far each one is."""

from __future__ import annotations

import kombu

from tests.support.inbox import Inbox


def test_subscribers_are_listed_with_their_lag(cli, channel, connect):
    news = kombu.Exchange("news", "fanout")
    inboxes = [
        Inbox(connect().channel(), kombu.Queue("brief", news, auto_delete=True)),
        Inbox(
            connect().channel(),
            kombu.Queue("kept", news, durable=True, queue_arguments={"x-durable-subscriber": True}),
            ack=False,
            prefetch=1,
        ),
    ]
    kombu.Exchange("other", "direct")(channel).declare()
    for number in range(3):
        kombu.Producer(channel, news).publish(number)
    for inbox in inboxes:
        inbox.drain(1)

    found = cli("subscribers", "--json").lines

    assert {one["exchange"] for one in found} == {"news"}
    by_queue = {(one["queue"], one["durable"]): one for one in found}
    assert by_queue["kept", False]["lag"] >= 1
    assert by_queue["brief", False]["last_heard"] >= by_queue["brief", False]["since"]
    assert by_queue["kept", True]["last_heard"] is None
    assert cli("subscribers", "--json", "n*s").lines
    assert cli("subscribers", "--json", "other").lines == []
    head, *rows = cli("subscribers").out.splitlines()
    assert head.split()[:5] == ["EXCHANGE", "QUEUE", "STATE", "DURABLE", "LAG"]
    assert len(rows) == len(found)
