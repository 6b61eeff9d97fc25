"""A replay of many dead letters, ended by Ctrl-C and run again: all are back once."""

from __future__ import annotations

import signal

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.keys import Keys
from tests.support.filling import fill
from tests.support.inbox import declare, publish
from tests.support.program import forked
from tests.support.waiting import wait_until

COUNT = 10_000
OPTIONS = "?dead_letter_max=100000"


@pytest.fixture
def letters(channel, broker_url, redis_client):
    """Make 10,000 dead letters of queue `q`; their connection."""
    declare(channel, "q")
    for number in range(10):
        publish(channel, "q", number, headers={"task": "shop.pay"})
    of = Keys().queue("q")
    fill(redis_client, of, of.ready, COUNT)
    with BrokerAdmin(broker_url + OPTIONS) as admin:
        for _, tags in admin.waiting_tags("q", "shop.*"):
            admin.cancel("q", tags, dead_letter=True)
        yield admin.dead_letters


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_replay_that_is_interrupted_and_run_again_replays_each_once(letters, broker_url, redis_client):
    of = Keys().queue("q")
    dead = set(redis_client.zrange(of.dead, 0, -1))
    assert len(dead) == COUNT
    command = ("celery_redis_plus", "dead-letters", "replay", "q", "--all", "--broker", broker_url + OPTIONS)

    with forked(*command) as process:
        wait_until(lambda: redis_client.zcard(of.dead) < COUNT, 60)
        process.send_signal(signal.SIGINT)
        printed, told = process.stdout.read(), process.stderr.read()

    assert process.wait(60) == 130
    assert told.splitlines()[-1] == "celery-redis-plus dead-letters replay: interrupted; the same line again does the rest"
    left = redis_client.zcard(of.dead)
    assert 0 < left < COUNT
    assert printed == f"{COUNT - left:,} dead letter(s) of queue 'q' are back to work\n"

    with forked(*command) as again:
        printed = again.stdout.read()

    assert (again.wait(60), printed) == (0, f"{left:,} dead letter(s) of queue 'q' are back to work\n")
    assert redis_client.zcard(of.dead) == 0
    assert set(redis_client.zrange(of.ready, 0, -1)) == dead
    assert int(redis_client.hget(of.meta, "replayed")) == COUNT
