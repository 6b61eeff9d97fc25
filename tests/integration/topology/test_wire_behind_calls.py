"""What follows a call over a held connection without being waited for, and scripts that the server flushes."""

from __future__ import annotations

import threading

import pytest
import redis

from celery_redis_plus.errors import ServerUnavailable
from celery_redis_plus.topology import wire as wire_module
from celery_redis_plus.transport.failures import CONNECTION_ERRORS
from tests.support.wires import ADD, FAIL, Answers

# -- behind a call ----------------------------------------------------------------------------------------------------------


def test_what_follows_a_call_is_done_after_it_and_its_reply_not_waited_for(wire):
    wire.run(ADD, [b"n"], 1)
    answers = Answers()
    for _ in range(3):
        wire.trail(ADD, [b"n"], 10, done=answers)
    assert wire.run(ADD, [b"n"], 1) == 2
    assert answers.replies == []
    assert wire.run(ADD, [b"n"], 1) == 33
    assert answers.replies == [12, 22, 32]


@pytest.mark.parametrize("how", ["command", "post", "push", "pipeline", "collect", "catch_up"])
def test_what_should_follow_a_call_is_done_before_anything_else_that_is_sent(wire, how):
    wire.run(ADD, [b"n"], 1)
    answers = Answers()
    wire.post(ADD, [b"n"], 1, hold=True, done=answers)
    wire.trail(ADD, [b"n"], 10, done=answers)
    if how == "command":
        wire.command("PING")
    elif how == "post":
        wire.post(ADD, [b"n"], 100, done=answers)
    elif how == "pipeline":
        assert wire.pipeline([("GET", "n")]) == [b"12"]
    else:
        getattr(wire, how)()
    wire.catch_up()
    assert answers.replies == [2, 12, 112][: 3 if how == "post" else 2]


def test_a_script_that_the_connection_has_not_brought_goes_before_the_call(wire):
    answers = Answers()
    wire.trail(ADD, [b"n"], 10, done=answers)
    assert wire.run(ADD, [b"n"], 1) == 11
    assert answers.replies == [10]


def test_what_follows_a_call_survives_the_loss_of_the_scripts(wire, redis_client):
    wire.run(ADD, [b"n"], 1)
    redis_client.script_flush()
    answers = Answers()
    wire.trail(ADD, [b"n"], 10, done=answers)
    assert wire.run(ADD, [b"n"], 1) in {2, 12}
    wire.catch_up()
    assert answers.errors == []
    assert int(redis_client.get("n")) == 12


def test_what_follows_a_call_that_the_server_refuses_is_done(wire):
    wire.run(ADD, [b"n"], 1)
    answers = Answers()
    wire.trail(ADD, [b"n"], 10, done=answers)
    with pytest.raises(redis.ResponseError):
        wire.run(FAIL, [])
    wire.catch_up()
    assert answers.replies == [11]


def test_what_waits_to_follow_a_call_is_told_when_the_connection_is_lost(wire):
    wire.run(ADD, [b"n"], 1)
    answers = Answers()
    wire.trail(ADD, [b"n"], 10, done=answers)
    wire.abandon()
    assert len(answers.errors) == 1


def test_owed_replies_are_read_until_it_is_enough(wire):
    answers = Answers()
    for _ in range(5):
        wire.post(ADD, [b"n"], 1, done=answers)
    wire.catch_up(until=lambda: len(answers.replies) == 2)
    assert answers.replies == [1, 2]
    wire.catch_up()
    assert answers.replies == [1, 2, 3, 4, 5]


# -- scripts that are flushed -----------------------------------------------------------------------------------------------


@pytest.fixture
def flushed(wire, monkeypatch):
    """Have the scripts flushed between the two halves of the next writes that bring a script along."""
    with_source = wire._with_source  # noqa: SLF001

    def flush(times):
        left = [times]

        def flushing(script, packed):
            if script.sha not in wire._loaded and left[0] > 0:  # noqa: SLF001
                left[0] -= 1
                packed = wire_module.pack_command(("SCRIPT", "FLUSH")) + packed
                sent = with_source(script, packed)
                wire._owed.append(wire_module._Owed(None, b"", None))  # noqa: SLF001
                return sent
            return with_source(script, packed)

        monkeypatch.setattr(wire, "_with_source", flushing)

    return flush


@pytest.mark.parametrize("times", [1, 2, wire_module.TRIES - 1])
def test_a_script_that_is_flushed_before_it_runs_is_sent_again(times, wire, flushed):
    flushed(times)
    assert wire.run(ADD, [b"n"], 1) == 1
    assert wire.run(ADD, [b"n"], 1) == 2


def test_scripts_that_are_flushed_each_time_are_a_failure_of_the_server_from_which_kombu_recovers(wire, flushed):
    flushed(wire_module.TRIES)
    with pytest.raises(ServerUnavailable, match="stop what sends SCRIPT FLUSH") as caught:
        wire.run(ADD, [b"n"], 1)
    assert isinstance(caught.value, CONNECTION_ERRORS)
    assert not wire.in_doubt
    assert wire.run(ADD, [b"n"], 1) == 1


def test_scripts_run_while_a_thread_flushes_them(wire, redis_client):
    stop = threading.Event()

    def flush():
        while not stop.is_set():
            redis_client.script_flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        for number in range(300):
            while True:
                try:
                    assert wire.run(ADD, [b"n"], 1) == number + 1
                    break
                except ServerUnavailable:
                    continue
    finally:
        stop.set()
        thread.join()
