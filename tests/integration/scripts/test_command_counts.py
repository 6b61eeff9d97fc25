"""How many commands the scripts of a publish call: what an optional feature adds, and that others pay nothing."""

from __future__ import annotations

import kombu
import pytest

from tests.integration.flow_control.conftest import connect
from tests.support.inbox import declare, publish

__all__ = ["connect"]

FAR = {"x-max-pending": 1_000_000, "x-throttle": True, "x-overflow": "block"}
COUNT = 20


def commands_of_a_publish(client, channel, queue):
    """Return how often each command runs a publish, the looks at the server that come by the clock aside."""
    publish(channel, queue, "warm")
    client.config_resetstat()
    publish(channel, queue, *range(COUNT))
    calls = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()}
    return {name: round(number / COUNT) for name, number in calls.items() if number >= COUNT}


PLAIN = {"evalsha": 1, "hmget": 1, "time": 1, "hset": 2, "zadd": 2, "set": 1}


def test_a_publish_to_a_plain_queue_calls_seven_commands(connect, redis_client):
    channel = connect().channel()
    declare(channel, "q")
    assert commands_of_a_publish(redis_client, channel, "q") == PLAIN


def test_limits_that_are_far_add_four_looks(connect, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments=FAR)
    assert commands_of_a_publish(redis_client, channel, "q") == {**PLAIN, "zcard": 3, "exists": 1}


def test_a_limit_of_bytes_is_counted_by_one_command(connect, redis_client):
    channel = connect().channel()
    declare(channel, "q", arguments={"x-max-length-bytes": 1_000_000, "x-overflow": "reject-publish"})
    assert commands_of_a_publish(redis_client, channel, "q") == {**PLAIN, "zcard": 2, "hincrby": 1}


def test_an_event_adds_one_read_and_one_entry(connect, redis_client):
    channel = connect(event_log=True).channel()
    declare(channel, "q")
    assert commands_of_a_publish(redis_client, channel, "q") == {**PLAIN, "hmget": 2, "xadd": 1}


@pytest.mark.parametrize("name", ['"', "\\", "\u2028é", "a\tb", "\udcff"])
def test_queues_with_names_that_json_escapes_have_events(connect, redis_client, name):
    channel = connect(event_log=True).channel()
    declare(channel, name)
    publish(channel, name, 1)
    assert redis_client.xlen(channel.session.keys.queue(name).events) == 1


def test_a_broadcast_calls_six_commands_and_limits_add_eight(connect, redis_client):
    channel = connect().channel()

    def commands(name, **arguments):
        news = kombu.Exchange(name, "fanout", durable=True, arguments=arguments)
        kombu.Queue(name, news, durable=True)(channel).declare()
        publish = kombu.Producer(channel, news).publish
        publish("warm")
        redis_client.config_resetstat()
        for number in range(COUNT):
            publish(number)
        calls = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in redis_client.info("commandstats").items()}
        return {name: round(number / COUNT) for name, number in calls.items() if number >= COUNT}

    plain = {"evalsha": 1, "hget": 2, "exists": 1, "hincrby": 1, "xadd": 1, "set": 1}
    assert commands("plain") == plain
    limited = commands("limited", **FAR)
    assert sum(limited.values()) == 15
