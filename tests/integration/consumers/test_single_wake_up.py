"""One message wakes one consumer, as the server counts."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

CONSUMERS = 50
MESSAGES = 400


def calls(client, *commands):
    stats = client.info("commandstats")
    return [stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands]


@pytest.fixture
def crew(connect):
    """Fifty idle consumers, each with a connection and a thread of its own."""
    stop = threading.Event()
    inboxes = [Inbox(connect(polling_interval=600).channel(), "q", prefetch=10) for _ in range(CONSUMERS)]

    def consume(inbox):
        while not stop.is_set():
            inbox.pump(0.5)

    threads = [threading.Thread(target=consume, args=(inbox,)) for inbox in inboxes]
    for thread in threads:
        thread.start()
    yield inboxes
    stop.set()
    for thread in threads:
        thread.join()


def blocked(client):
    return client.info("clients")["blocked_clients"]


def test_a_message_to_fifty_idle_consumers_wakes_one(connect, crew, redis_client):
    publisher = connect().channel()
    declare(publisher, "q")
    # The maintenance thread's blocked call on the timers is one of them.
    wait_until(lambda: blocked(redis_client) == CONSUMERS + 1)
    redis_client.config_resetstat()
    for number in range(MESSAGES):
        publish(publisher, "q", number)
        wait_until(lambda number=number: sum(len(inbox.messages) for inbox in crew) > number, interval_s=0)
    wait_until(lambda: blocked(redis_client) == CONSUMERS + 1)
    woken, claimed = calls(redis_client, "bzmpop", "zremrangebyrank")
    assert woken == pytest.approx(MESSAGES, rel=0.01)
    assert claimed == pytest.approx(MESSAGES, rel=0.01)
    shares = [len(inbox.messages) for inbox in crew]
    assert sum(shares) == MESSAGES
    # The longest waiting is woken first, so they take turns.
    assert max(shares) - min(shares) <= 2, shares


def test_idle_consumers_cost_no_commands(crew, redis_client):
    wait_until(lambda: blocked(redis_client) == CONSUMERS + 1)
    redis_client.config_resetstat()
    time.sleep(2)
    evaluated, woken = calls(redis_client, "evalsha", "bzmpop")
    # A sweep, and signs of life.
    assert evaluated <= 4
    assert woken == 0
