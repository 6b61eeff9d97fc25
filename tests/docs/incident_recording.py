"""The recordings of docs/incidents.md: makes four faults on a broker, runs the page's commands, compares or writes.

`python -m tests.docs.incident_recording` writes the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import kombu

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.keys import Keys
from tests.docs.blocks import ROOT
from tests.docs.terminal_recording import Recording, recorded
from tests.support.inbox import Inbox, declare, publish
from tests.support.servers import session_server
from tests.support.services import end_services
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

PAGE = ROOT / "docs/incidents.md"
#: The page is about what waits for minutes and hours: the records are made so old, ms.
PAUSED_MS, FLOODED_MS, SILENT_MS = 7_230_000, 5_430_000, 400_000
#: A killed worker is lost sooner than by default, and a frozen one stays listed for longer, however slow the machine is.
OPTIONS = "?connection_lost_grace=1&consumer_heartbeat_timeout=600"
#: A worker that takes one message and never settles it.
WORKER = """
import sys, kombu, celery_redis_plus
mails = kombu.Queue("mails", durable=True)
with kombu.Connection(sys.argv[1]) as connection:
    with kombu.Consumer(connection.channel(), [mails], on_message=lambda _: print("took", flush=True)):
        while True:
            connection.drain_events()
"""


def _age(match: re.Match[str]) -> str:
    made = next((ms / 1000 for ms in (PAUSED_MS, FLOODED_MS) if float(match[2]) >= ms / 1000), 0.0)
    return f"{match[1]}{made}"


SHOWN: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"on \S+, process \d+"), "on worker-1, process 4711"),
    (re.compile(r"is silent for \d+ \w+ *"), "is silent for 45 s "),
    (re.compile(r"(oldest_ready_seconds\{\S+ )(\S+)"), _age),
)


class IncidentRecording(Recording):
    """Runs the page's commands, and ends the frozen worker as an operator does."""

    def __init__(self, url: str, client: redis.Redis, worker: subprocess.Popen[str]) -> None:
        super().__init__(url, client)
        self._worker = worker

    def run(self, command: str) -> str:
        """Run one line of the page; return what it printed as the page shows it."""
        program = shlex.split(command)[0]
        if program == "kill":
            self._worker.kill()
            self._worker.wait()
            of = Keys().queue("mails")
            wait_until(lambda: self._client.zcard(of.ready) == 1 and not self._client.zcard(of.consumers), 60)
            return ""
        text = super().run(command)
        for pattern, replacement in SHOWN:
            text = pattern.sub(replacement, text)
        return text


@contextlib.contextmanager
def incident(url: str, client: redis.Redis) -> Iterator[IncidentRecording]:
    """Make the four faults: a poison task, a forgotten pause, a frozen worker, a flood."""
    url += OPTIONS
    with kombu.Connection(url) as connection, mock.patch.dict(os.environ, {"CELERY_BROKER_URL": url}):
        channel = connection.channel()
        declare(channel, "bulk", "invoices", "mails", "orders")
        _poison(channel)
        _flood(channel, client)
        with BrokerAdmin(url) as admin:
            publish(channel, "invoices", *range(40), headers={"task": "shop.bill"})
            admin.pause("invoices", "the database moves")
        of = Keys().queue("invoices")
        client.hincrby(of.meta.decode(), "paused_at", -PAUSED_MS)
        _make_old(client, of.ready, PAUSED_MS)
        publish(channel, "mails", "a mail", headers={"task": "shop.mail"})
        with _frozen_worker(url, client) as worker:
            yield IncidentRecording(url, client, worker)


def _poison(channel: Any) -> None:
    inbox = Inbox(channel, "orders", ack=False)
    for number in range(120):
        publish(channel, "orders", number, headers={"task": "shop.refund" if number % 10 else "shop.ship"})
    inbox.drain(120)
    for message in inbox.messages:
        message.reject()
    inbox.consumer.cancel()


def _flood(channel: Any, client: redis.Redis) -> None:
    """Fill `orders` with one tenant's tasks, in front of those of others; its only consumer has all that it takes."""
    consumer = Inbox(channel, "orders", ack=False, prefetch=1)
    publish(channel, "orders", *range(3_001), headers={"task": "tenant7.import"})
    consumer.drain(1)
    publish(channel, "orders", *range(20), headers={"task": "shop.ship"})
    _make_old(client, Keys().queue("orders").ready, FLOODED_MS)


def _make_old(client: redis.Redis, ready: bytes, ms: int) -> None:
    with client.pipeline() as pipeline:
        for tag in client.zrange(ready, 0, -1):  # type: ignore[union-attr]
            pipeline.zincrby(ready, -ms, tag)
        pipeline.execute()


def _is_known(client: redis.Redis, pid: int) -> bool:
    return any(f'"pid":{pid}'.encode() in record for record in client.hvals(Keys().processes[0].decode()))  # type: ignore[union-attr]


@contextlib.contextmanager
def _frozen_worker(url: str, client: redis.Redis) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "took\n"
            # Its connections are known, and so are this process's: it can be found lost.
            wait_until(lambda: _is_known(client, worker.pid), 60)
            worker.send_signal(signal.SIGSTOP)
            of = Keys().queue("mails")
            (name,) = client.zrange(of.consumers, 0, -1)  # type: ignore[misc]
            client.hincrby((of.consumer + name).decode(), "heard", -SILENT_MS)
            yield worker
        finally:
            worker.kill()


def write() -> None:
    """Write the page anew."""
    with session_server() as server, server.client() as client:
        client.flushdb()
        with incident(server.url(), client) as recording:
            PAGE.write_text(recorded(PAGE.read_text(encoding="utf-8"), recording), encoding="utf-8")
        end_services()


if __name__ == "__main__":
    write()
