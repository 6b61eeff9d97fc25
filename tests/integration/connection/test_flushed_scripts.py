"""Scripts that the server flushes while a held connection uses them."""

from __future__ import annotations

import threading

import pytest

from celery_redis_plus.connection import command_connection as wire_module
from celery_redis_plus.connection.pending_reply import PendingReply, unread
from celery_redis_plus.errors import ServerUnavailable
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from tests.support.connections import ADD

# -- scripts that are flushed -----------------------------------------------------------------------------------------------


@pytest.fixture
def flushed(commands, monkeypatch):
    """Have the scripts flushed between the two halves of the next writes that bring a script along."""
    with_source = commands._with_source  # noqa: SLF001

    def flush(times):
        left = [times]

        def flushing(script, packed):
            if script.sha not in commands._loaded and left[0] > 0:  # noqa: SLF001
                left[0] -= 1
                packed = wire_module.pack_command(("SCRIPT", "FLUSH")) + packed
                sent = with_source(script, packed)
                commands._pending.append(PendingReply(None, b"", unread))  # noqa: SLF001
                return sent
            return with_source(script, packed)

        monkeypatch.setattr(commands, "_with_source", flushing)

    return flush


@pytest.mark.parametrize("times", [1, 2, wire_module.SCRIPT_SENDS - 1])
def test_a_script_that_is_flushed_before_it_runs_is_sent_again(times, commands, flushed):
    flushed(times)
    assert commands.call(ADD, [b"n"], 1) == 1
    assert commands.call(ADD, [b"n"], 1) == 2


def test_scripts_that_are_flushed_each_time_are_a_failure_of_the_server_from_which_kombu_recovers(commands, flushed):
    flushed(wire_module.SCRIPT_SENDS)
    with pytest.raises(ServerUnavailable, match="stop what sends SCRIPT FLUSH") as caught:
        commands.call(ADD, [b"n"], 1)
    assert isinstance(caught.value, CONNECTION_ERRORS)
    assert not commands.outcome_unknown
    assert commands.call(ADD, [b"n"], 1) == 1


def test_scripts_run_while_a_thread_flushes_them(commands, redis_client):
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
                    assert commands.call(ADD, [b"n"], 1) == number + 1
                    break
                except ServerUnavailable:
                    continue
    finally:
        stop.set()
        thread.join()
