"""What commands that run for long do while their broker is away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import contextmanager

import kombu
import pytest

from tests.support.inbox import declare, publish
from tests.support.kombu_installation import declare_old
from tests.support.program import forked
from tests.support.waiting import wait_until

PROGRAM = [sys.executable, "-m", "celery_redis_plus"]


@contextmanager
def running(*arguments, **options):
    """Run a command until the end of the block, and give its process."""
    with subprocess.Popen([*PROGRAM, *arguments], **options) if options else forked(*PROGRAM[2:], *arguments) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)


@pytest.fixture
def broker(own_server):
    """A server of its own, and a queue on it."""
    with kombu.Connection(own_server.url()) as connection:
        declare(connection.default_channel, "orders")
    return own_server


def test_watch_tells_once_that_its_broker_is_away_and_once_that_it_is_back(broker):
    with running("queues", "--watch", "--interval", "0.1", "--json", "--broker", broker.url()) as process:
        assert json.loads(process.stdout.readline())["queue"] == "orders"
        broker.kill()
        assert "it tries again" in process.stderr.readline()
        broker.restart()
        assert "the broker answers again, after" in process.stderr.readline()
        with kombu.Connection(broker.url()) as connection:
            declare(connection.default_channel, "later")
        while json.loads(process.stdout.readline())["queue"] != "later":
            pass
        process.send_signal(signal.SIGINT)
        assert (process.wait(20), process.stderr.read()) == (0, "")


def shown(broker, terminal):
    """Give a function that tells what `queues --watch` has written to a terminal so far."""
    written = b""

    def read():
        nonlocal written
        written += os.read(terminal, 4096)
        return written.decode()

    return read


@pytest.mark.parametrize(("environment", "grey"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)])
def test_on_a_terminal_the_last_figures_stay_in_grey_below_the_reason(broker, environment, grey):
    terminal, stdout = pty.openpty()
    try:
        arguments = ["queues", "--watch", "--interval", "0.1", "--broker", broker.url()]
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | environment
        with running(*arguments, stdout=stdout, stderr=subprocess.DEVNULL, env=environment):
            read = shown(broker, terminal)
            wait_until(lambda: "orders" in read())
            broker.kill()
            wait_until(lambda: "orders" in read().partition("no answer since")[2])
            assert ("\x1b[2m" in read()) == grey
    finally:
        os.close(stdout)
        os.close(terminal)


def test_a_terminal_shows_as_many_queues_as_fit_the_worst_first(broker):
    with kombu.Connection(broker.url()) as connection:
        declare(connection.default_channel, *(f"idle{number}" for number in range(8)), "waits")
        publish(connection.default_channel, "waits", "x")
    terminal, stdout = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm", "LINES": "6", "COLUMNS": "200"}
        arguments = ["queues", "--watch", "--interval", "0.1", "--broker", broker.url()]
        with running(*arguments, stdout=stdout, stderr=subprocess.DEVNULL, env=environment):
            read = shown(broker, terminal)
            wait_until(lambda: "3 of 10 queues" in read())
            first = read().partition("3 of 10 queues")[0]
    finally:
        os.close(stdout)
        os.close(terminal)
    assert [line.split()[0] for line in first.splitlines()[1:4]] == ["waits", "idle0", "idle1"]


def cut(client):
    """Close all connections of this package."""
    for one in client.client_list():
        if one["name"].startswith("celery-redis-plus"):
            client.client_kill_filter(_id=one["id"])


def log_event(broker, body):
    """Publish a message whose event is logged."""
    with kombu.Connection(broker.url(), transport_options={"event_log": True}) as connection:
        publish(connection.default_channel, "logged", body)


def test_tail_goes_on_behind_the_last_event_after_a_cut_connection(own_server):
    log_event(own_server, "before")
    with own_server.client() as client, running("events", "tail", "--json", "--broker", own_server.url()) as process:
        first = json.loads(process.stdout.readline())
        cut(client)
        assert "it tries again" in process.stderr.readline()
        assert "the broker answers again" in process.stderr.readline()
        log_event(own_server, "after")
        second = json.loads(process.stdout.readline())
        assert (first["event"], second["event"], first["id"] < second["id"]) == ("published", "published", True)
        process.send_signal(signal.SIGINT)
        assert (process.wait(20), process.stderr.read()) == (0, "")


def test_follow_outlives_cut_connections_and_prints_its_report(broker):
    arguments = ["migrate", "--follow", "--json", "--broker", broker.url()]
    with kombu.Connection(broker.url(scheme="redis")) as connection, broker.client() as client:
        old = connection.default_channel
        declare_old(old, "orders")
        with running(*arguments) as process:
            publish(old, "orders", "before")
            wait_until(lambda: not client.llen("orders"))
            cut(client)
            assert "it tries again" in process.stderr.readline()
            assert "the broker answers again" in process.stderr.readline()
            publish(old, "orders", "after")
            wait_until(lambda: not client.llen("orders"))
            process.send_signal(signal.SIGTERM)
            out, err = process.stdout.read(), process.stderr.read()
            assert (process.wait(20), err) == (0, "")
    assert json.loads(out)["ready"] == 2


def test_a_pass_that_an_error_ends_prints_what_it_has_moved(broker):
    with kombu.Connection(broker.url(scheme="redis")) as connection, broker.client() as client:
        old = connection.default_channel
        declare_old(old, "orders")
        with running("migrate", "--follow", "--json", "--broker", broker.url()) as process:
            publish(old, "orders", "x")
            wait_until(lambda: not client.llen("orders"))
            client.acl_setuser("default", enabled=True, nopass=True, commands=["-llen"])
            out, err = process.stdout.read(), process.stderr.read()
    assert process.wait(30) == 1
    assert json.loads(out)["ready"] == 1
    assert "What to do" in err
