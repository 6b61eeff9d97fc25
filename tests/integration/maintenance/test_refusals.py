"""Maintenance tasks that the server refuses: a refusal is no outage, and one task's is not the others'."""

import logging

import pytest
from redis.exceptions import ResponseError

from celery_redis_plus.broker.dead_letters.store import DeadLetters
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

VISIBILITY_TIMEOUT_S = 3


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="celery_redis_plus.maintenance")

    def find(text):
        return [record.getMessage() for record in caplog.records if text in record.getMessage()]

    return find


def test_heartbeats_go_on_while_a_queue_cannot_be_swept(connect, redis_client, lines):
    channel = connect(visibility_timeout=VISIBILITY_TIMEOUT_S).channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "m")
    inbox.drain(1)
    keys = channel.session.keys.queue("q")

    def deadline():
        return redis_client.zrange(keys.index, 0, -1, withscores=True)[0][1]

    # As if somebody else had a key of that name.
    redis_client.set(keys.trash, "no sorted set")
    wait_until(lambda: lines("queue 'q' cannot be swept"), 10)
    for _ in range(3):
        before = deadline()
        wait_until(lambda before=before: deadline() > before, 10)
    assert len(lines("queue 'q' cannot be swept")) == 1
    assert not lines("is unreachable")

    redis_client.delete(keys.trash)
    wait_until(lambda: lines("queue 'q' is swept again"), 10)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda queues, _: queues.registry.missing(["none"]), id="missing"),
        pytest.param(lambda _, dead: dead.lost_by("q", 1, 1), id="lost_by"),
    ],
)
def test_an_error_reply_among_several_is_a_refusal_and_no_defect(ask, channel, redis_client):
    """The server may begin to refuse between two commands of one write: a long script, a full disk."""
    session = channel.session
    redis_client.set(session.keys.queue("q").meta, "no hash")
    redis_client.set(session.keys.queues, "no sorted set")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        ask(session.queues, DeadLetters(session.commands, session.keys))
