"""What goes to another shard leaves its own when `wait_replicas` replicas have it there."""

import kombu
import pytest

from celery_redis_plus.admin.shard_admin import admin_of_url, raise_of_url
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.shards import shard_state
from tests.integration.shards.conftest import SHARDS, named
from tests.support.inbox import Inbox, declare, publish
from tests.support.servers import replicated_servers
from tests.support.waiting import wait_until

CAREFUL = {"wait_replicas": 1, "wait_replicas_timeout": 0.25}


@pytest.fixture
def pair():
    shard_state.forget()
    with replicated_servers() as servers:
        yield servers


def test_messages_leave_their_old_shard_when_replicas_have_them(pair, connect):
    primary, replica = pair
    queue = next(name for number in range(99) if shard_of(name := f"q{number}", 6) == 4)
    channel = connect(primary.url(), shards=SHARDS).channel()
    declare(channel, queue)
    publish(channel, queue, *range(3))
    url = f"{primary.url()}?shards={SHARDS}"
    replica.freeze()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="only 0 of 1 replicas"), raise_of_url(url, 6, CAREFUL) as found:
            sum(found.run(lambda: False))
        with primary.client() as client:
            (left,) = client.scan_iter("*leaving_shard:*", count=10_000)
            assert client.hlen(left) == 3
    replica.thaw()
    with raise_of_url(url, 6, CAREFUL) as found:
        assert sum(found.run(lambda: False)) == 3
    inbox = Inbox(connect(primary.url(), shards=6).channel(), kombu.Queue(queue, no_declare=True))
    assert inbox.drain(3, timeout_s=5) == [0, 1, 2]


def test_a_dead_letter_leaves_its_shard_when_replicas_have_it(pair, connect):
    primary, replica = pair
    source, target = named(1), named(2)
    channel = connect(primary.url(), shards=SHARDS).channel()
    declare(channel, source, target)
    inbox = Inbox(channel, source, ack=False)
    publish(channel, source, "dead")
    inbox.drain(1)
    inbox.messages[0].reject()
    with admin_of_url(f"{primary.url()}?shards={SHARDS}", CAREFUL) as admin:
        wait_until(lambda: list(admin.dead_letters.all(source)))
        (letter,) = admin.dead_letters.all(source)
        replica.freeze()
        for _ in range(2):
            with pytest.raises(TimeoutError, match="only 0 of 1 replicas"):
                admin.replay(letter, target)
            assert list(admin.dead_letters.all(source))
        replica.thaw()
        assert admin.replay(letter, target)
    assert Inbox(channel, kombu.Queue(target, no_declare=True)).drain(1, timeout_s=5) == ["dead"]
