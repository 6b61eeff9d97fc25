"""Servers whose provider has disabled commands, as docs/servers.md has them."""

from __future__ import annotations

import re

import kombu
import pytest

from celery_redis_plus.errors import CommandUnavailable
from tests.docs.blocks import ROOT
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs" / "servers.md").read_text()


def commands_of(heading):
    """Return the commands before the colons of the list behind a line of the page."""
    items = PAGE.partition(heading)[2].partition("\n\n")[2].partition("\n\n")[0]
    named = (item.partition(": ")[0] for item in items.splitlines() if item.startswith("* "))
    return [name for names in named for name in re.findall(r"`([A-Z]+)`", names)]


OPTIONAL = commands_of("These may be missing")
NEEDED = re.findall(r"`([A-Z]+)`", PAGE.partition("are needed, such as")[2].partition("Without")[0])


def run(url):
    """Declare, publish, consume and ack: a plain message, a delayed one and a broadcast."""
    bodies = []

    def take(message):
        bodies.append(bytes(message.body).decode())
        message.ack()

    with kombu.Connection(url) as connection:
        channel = connection.channel()
        queues = [kombu.Queue("plain")(channel), kombu.Queue("news", kombu.Exchange("news", "fanout"))(channel)]
        with kombu.Consumer(channel, queues, on_message=take):
            producer = kombu.Producer(channel)
            producer.publish("now", routing_key="plain")
            producer.publish("soon", routing_key="plain", headers={"x-delay": 50})
            producer.publish("to all", exchange="news")
            while len(bodies) < 3:
                connection.drain_events(timeout=20)
        wait_until(lambda: channel.queue_sizes("plain").unacked == 0, 10)
    return sorted(bodies)


def test_the_page_has_both_kinds():
    assert len(OPTIONAL) == 13
    assert len(NEEDED) == 6


@pytest.mark.parametrize("command", OPTIONAL)
def test_a_command_that_may_be_missing_is_not_needed(start_server, command):
    assert run(start_server({"rename-command": f'{command} ""'}).url()) == ["now", "soon", "to all"]


@pytest.mark.parametrize("command", NEEDED)
def test_a_missing_command_is_named(start_server, command):
    with pytest.raises(CommandUnavailable) as refused:
        run(start_server({"rename-command": f'{command} ""'}).url())
    assert "docs/servers.md" in str(refused.value)
    if command not in {"EXISTS", "TIME"}:
        assert f"unknown command '{command}'" in str(refused.value)


def test_without_client_the_log_says_what_is_lost(start_server, caplog):
    caplog.set_level("INFO")
    run(start_server({"rename-command": 'CLIENT ""'}).url())
    assert "connections have no names: the server offers no CLIENT SETNAME" in caplog.text
    wait_until(lambda: "come back after the visibility timeout (300 s)" in caplog.text, 10)
