"""`celery-redis-plus events tail`: the event logs of queues as they are written."""

from __future__ import annotations

import json
import os
import signal

import pytest

from celery_redis_plus.event_log import tail
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.event_log.tail import Tail
from tests.support.inbox import Inbox, declare, publish
from tests.support.program import forked


@pytest.fixture
def logged(connect):
    """A channel whose queues have event logs."""
    return connect(event_log=True).channel()


def send(channel, queue, task):
    publish(channel, queue, "x", headers={"task": task, "id": f"id-{task}"})


def kinds(found):
    return [(one.queue, one.event.event, one.task) for one in found]


def test_events_are_read_as_they_are_written_with_their_task(broker_url, logged):
    inbox = Inbox(logged, "q")
    send(logged, "q", "before")
    inbox.drain(1)
    inbox.rest()
    with EventLog(broker_url) as log:
        tailing = Tail(log)
        assert tailing.read() == []
        send(logged, "q", "a")
        declare(logged, "new")
        send(logged, "new", "b")
        assert kinds(tailing.read()) == [("q", "published", "a"), ("new", "published", "b")]
        inbox.drain(2)
        inbox.rest()
        assert kinds(tailing.read()) == [("q", "claimed", "a"), ("q", "acked", "a")]
        assert tailing.read() == []


def test_the_task_of_a_message_that_was_published_before_is_known(broker_url, logged):
    declare(logged, "q")
    send(logged, "q", "a")
    with EventLog(broker_url) as log:
        tailing = Tail(log, task="a*")
        inbox = Inbox(logged, "q")
        inbox.drain(1)
        inbox.rest()
        assert kinds(tailing.read()) == [("q", "claimed", "a"), ("q", "acked", "a")]
        assert Tail(log, task="b", last=10).read() == []
        assert kinds(Tail(log, kinds=["acked"], last=10).read()) == [("q", "acked", "a")]
        assert kinds(Tail(log, last=2).read()) == [("q", "claimed", "a"), ("q", "acked", "a")]


def test_more_events_than_one_read_takes_are_not_skipped(broker_url, logged, monkeypatch):
    monkeypatch.setattr(tail, "EVENTS_A_READ", 3)
    declare(logged, "q")
    with EventLog(broker_url) as log:
        tailing = Tail(log)
        for number in range(7):
            send(logged, "q", str(number))
        assert [one.task for _ in range(3) for one in tailing.read()] == list("0123456")


def test_the_tasks_of_the_youngest_messages_are_remembered(broker_url, logged, monkeypatch):
    monkeypatch.setattr(tail, "REMEMBERED", 1)
    declare(logged, "q")
    with EventLog(broker_url) as log:
        tailing = Tail(log)
        for task in ("a", "b"):
            send(logged, "q", task)
        inbox = Inbox(logged, "q")
        inbox.drain(2)
        inbox.rest()
        assert {one.task for one in tailing.read() if one.event.event == "acked"} == {None, "b"}


def test_the_command_prints_the_last_events(cli, logged):
    declare(logged, "q")
    send(logged, "q", "a")
    (line,) = cli("events", "tail", "--no-follow").out.splitlines()
    assert line.split()[1:3] == ["published", "q"]
    assert line.split()[4:6] == ["a", "id-a"]
    (one,) = cli("events", "tail", "--no-follow", "--json").lines
    assert (one["event"], one["queue"], one["task"], one["task_id"]) == ("published", "q", "a", "id-a")
    assert cli("events", "tail", "--no-follow", "--kind", "acked").out == ""
    assert cli("events", "tail", "--no-follow", "--last", "0").out == ""
    assert "'nothing' is not one of" in cli("events", "tail", "--kind", "nothing").err


def test_the_command_follows_until_ctrl_c(broker_url, logged):
    declare(logged, "q")
    send(logged, "q", "a")
    with forked("celery_redis_plus", "events", "tail", "--json", "--broker", broker_url) as process:
        assert json.loads(process.stdout.readline())["task"] == "a"
        send(logged, "q", "b")
        assert json.loads(process.stdout.readline())["task"] == "b"
        os.kill(process.pid, signal.SIGINT)
        assert (process.wait(20), process.stderr.read()) == (0, "")


def test_a_queue_without_events_is_named(cli, channel):
    declare(channel, "q")
    printed = cli("events", "tail")
    assert printed.status == 1
    assert "no queue under prefix '' at" in printed.err
