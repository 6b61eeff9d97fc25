"""WRONGTYPE and NOPERM name the script and the keys, which the server's own words do not."""

from __future__ import annotations

import re

import pytest

from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.refused_calls import MOST_KEYS, describe_refusal
from celery_redis_plus.errors import WrongKeyType
from celery_redis_plus.scripts import Script, script

ZADD_TWO = Script.of("zadd_two", "redis.call('ZADD', KEYS[1], 1, 'a') redis.call('ZADD', KEYS[2], 1, 'a')")


def test_a_command_on_a_key_of_another_type_names_the_key(commands):
    commands.command("SET", "queue:{q}", "x")
    with pytest.raises(WrongKeyType, match=r"WRONGTYPE.*\(command ZCARD, key queue:\{q\}\)\. What"):
        commands.command("ZCARD", "queue:{q}")


def test_every_way_to_send_a_command_names_its_keys(commands, open_commands):
    commands.command("SET", "wakeup:{q}", "x")
    errors = [commands.pipeline([("PING",), ("ZCARD", "wakeup:{q}")])[1]]
    commands.command_nowait("ZCARD", "wakeup:{q}", done=lambda _, error: errors.append(error))
    commands.send_nowait(ZADD_TWO, [b"schedule_wakeup:{q}", b"wakeup:{q}"], done=lambda _, error: errors.append(error))
    commands.read_until()
    blocking = open_commands(BlockingConnection)
    for command in (
        ("BZMPOP", 1, 2, "schedule_wakeup:{q}", "wakeup:{q}", "MIN"),
        ("XREAD", "BLOCK", 9, "STREAMS", "a", "wakeup:{q}", "$", "$"),
    ):
        commands.command("DEL", "schedule_wakeup:{q}")
        blocking.start(*command)
        with pytest.raises(WrongKeyType) as caught:
            blocking.finish()
        errors.append(caught.value)
    assert len(errors) == 5
    assert [error for error in errors if "wakeup:{q}" not in str(error)] == []
    assert ", one of the keys schedule_wakeup:{q}, wakeup:{q})" in str(errors[2])


def test_an_owed_reply_after_a_refusal_is_still_its_own(commands):
    commands.command("SET", "wakeup:{q}", "x")
    answers = []
    commands.send_nowait(
        ZADD_TWO, [b"schedule_wakeup:{q}", b"wakeup:{q}"], done=lambda _, error: answers.append(error), buffered=True
    )
    commands.send_nowait(script("next_queue_id"), [b"queue_ids"], 0, done=lambda reply, _: answers.append(reply), buffered=True)
    with pytest.raises(WrongKeyType):
        commands.call(ZADD_TWO, [b"schedule_wakeup:{q}", b"wakeup:{q}"])
    commands.read_until()
    assert isinstance(answers[0], WrongKeyType)
    assert answers[1] == 1
    assert commands.command("PING") == b"PONG"


def connections_received(commands):
    return re.search(rb"total_connections_received:(\d+)", commands.command("INFO", "stats"))[1]


def test_a_refusal_opens_no_connection_and_its_text_is_bounded(commands):
    commands.command("SET", "wakeup:{q}", "x")
    opened = connections_received(commands)
    for _ in range(20):
        with pytest.raises(WrongKeyType, match=r"wakeup:\{q\}"):
            commands.call(ZADD_TWO, [b"schedule_wakeup:{q}", b"wakeup:{q}"])
    assert connections_received(commands) == opened
    refusal = WrongKeyType("WRONGTYPE Operation")
    many = describe_refusal(refusal, ("EXISTS", *(f"k{number}" for number in range(MOST_KEYS + 3))))
    assert many.endswith(f"k{MOST_KEYS - 1} and 3 more")
