"""The terminal recordings of docs/command-line.md: runs the page's commands, and compares or writes what they print.

`python -m tests.docs.terminal_recording` writes the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import kombu
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.queues.audit import ACTOR_VARIABLE
from celery_redis_plus.broker.queues.queue_ids import RANDOM_DIGITS
from celery_redis_plus.cli.main import main
from celery_redis_plus.cli.metrics import BrokerCollector
from celery_redis_plus.keys import Keys
from tests.support.filling import fill
from tests.support.inbox import Inbox, declare, publish
from tests.support.kombu_installation import declare_old, in_seconds
from tests.support.servers import session_server
from tests.support.services import end_services
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

PAGE = Path(__file__).parents[2] / "docs/command-line.md"
MESSAGES = 10_000
#: What the recording keeps as dead letters: more than the default.
OPTIONS = "?dead_letter_max=200000"
TASKS = (*("shop.pay",) * 19, "shop.mail")
#: Tasks in the lists of kombu's own transport.
OLD_TASKS = 3_000
#: The broadcast before which the second subscriber came.
SUBSCRIBED_AT = 12
#: The delivery in queue `payments` of which the message has been there before.
REDELIVERY = 2
#: Commands that end with status 1 where they find what the page is about.
FINDING = {"doctor"}
PROGRESS = re.compile(r" of [\d,]+ .*\(\d+ %\)$")
#: A block of commands with what they print.
RECORDING = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ID = re.compile(r"\b[0-9a-f]{11}(?:1[0-9a-f]{7}|0[0-9a-f]{7})[.=~-][0-9a-z]+")
SESSION = re.compile(r"\b([0-9a-f]{12,40})(\.\d+)?(?![-.=~\w])")
#: What differs from run to run, and what stands in the page for it.
SHOWN: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00"), "2026-11-22T15:00:00+00:00"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "2026-11-22 15:00:00"),
    (re.compile(r"until \d\d:\d\d:\d\d UTC"), "until 16:00:00 UTC"),
    (re.compile(r"^\d\d:\d\d:\d\d\.\d{3}", re.MULTILINE), "15:00:00.000"),
    (SESSION, lambda match: ("5f0c27a1e9b34d86" * 3)[: len(match[1])] + (match[2] or "")),
    (re.compile(r'("id": ")[0-9a-f]{12}\.(?=[a-z])'), r"\g<1>5f0c27a1e9b3."),
    (re.compile(r"(worker-1:)\d+|\d+(@worker-1)"), lambda match: f"{match[1] or ''}4711{match[2] or ''}"),
    (re.compile(r'("pid": )\d+'), r"\g<1>4711"),
    # In a table, with its width.
    (re.compile(r"(worker-1 +)(\d+)"), lambda match: match[1] + "4711".ljust(len(match[2]))),
    (re.compile(r"\bnot interested\b|\bnotified\b"), "interested"),
    (re.compile(r'("tag": )"[^"]*"'), r'\g<1>"None1"'),
    (re.compile(r'("oldest_s": )[\d.]+'), r"\g<1>5.0"),
    (re.compile(r"('time': )\d+"), r"\g<1>1795359600"),
    (re.compile(r"\d:\d\d:\d\d ago"), "0:00:05 ago"),
    # In a sentence, and in a table, with its width.
    (re.compile(r"\b\d+ (?:s|min)\b(?=,| from now)"), "5 s"),
    (re.compile(r"\b\d+ (?:s|min)\b"), lambda match: "5 s".ljust(len(match[0]))),
)


class Recording:
    """Runs commands as an operator does, and shows each message's id by a number of its own."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self._client = client
        self._shown: dict[str, str] = {}
        #: Ids that the page's source names: `{first}`.
        self.names: dict[str, str] = {}

    def run(self, command: str) -> str:
        """Run one line of the page; return what it printed as the page shows it."""
        for shown, real in {one: id_ for id_, one in self._shown.items()}.items():
            command = command.replace(shown, real)
        program, *arguments = shlex.split(command)
        if program == "curl":
            return self._metrics(arguments[-1])
        assert program == "celery-redis-plus"
        printed, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            status = main(arguments)
        assert status in ({0, 1} if arguments[0] in FINDING else {0}), f"{command}: {status}\n{told.getvalue()}"
        # Progress, which a slow machine shows, is no part of the page.
        said = "".join(line for line in told.getvalue().splitlines(keepends=True) if not PROGRESS.search(line))
        return self.shown(printed.getvalue() + said)

    def _metrics(self, wanted: str) -> str:
        """Return the lines of the exporter that `grep -E` finds."""
        collector = BrokerCollector(lambda: BrokerAdmin(self.url))
        registry = CollectorRegistry()
        registry.register(collector)
        lines = generate_latest(registry).decode().splitlines()
        collector.close()
        return self.shown("\n".join(line for line in lines if not line.startswith("#") and re.search(wanted, line)))

    def id_of(self, real: str) -> str:
        """Return what stands in the page for an id, of the same length."""
        if real not in self._shown:
            stem, flag = real[:19], real[19:]
            self._shown[real] = f"19a4d2f3b1c{len(self._shown) + 1:08x}"[: len(stem)] + flag[:-RANDOM_DIGITS] + "7k3x9"
        return self._shown[real]

    def shown(self, text: str) -> str:
        """Return text with what differs from run to run replaced."""
        text = ID.sub(lambda match: self.id_of(match[0]), text)
        ids = "|".join(map(re.escape, self._shown.values())) or "$^"
        # What stands for an id is none of the other patterns.
        parts = re.split(f"({ids})", text)
        for pattern, replacement in SHOWN:
            parts[::2] = [pattern.sub(replacement, part) for part in parts[::2]]
        return "".join(parts)


def same(text: str) -> str:
    """Return text without its alignment, by which a longer host name or age would differ."""
    return re.sub(r" +", " ", text)


def recorded(page: str, recording: Recording) -> str:
    """Return the page with what its commands print now."""

    def block(match: re.Match[str]) -> str:
        printed = []
        for line in match[1].splitlines():
            if line.startswith("$ "):
                printed += [line, *recording.run(line.removeprefix("$ ")).splitlines()]
        return "```console\n" + "\n".join(printed) + "\n```"

    return RECORDING.sub(block, page)


@contextlib.contextmanager
def live_system(recording: Recording, client: redis.Redis, messages: int = MESSAGES) -> Iterator[None]:
    """Fill a broker, for commands that run in an empty folder.

    Queue `orders` has so many messages with a consumer, delayed ones and dead letters, `payments` an event log, `other` nothing
    but 3,000 tasks of kombu's own transport. The exchange `prices` has two subscribers.
    """
    host = mock.patch("socket.gethostname", return_value="worker-1")
    with host, kombu.Connection(recording.url) as connection, kombu.Connection(recording.url) as consuming:
        channel = connection.channel()
        declare(channel, "orders", "other")
        inbox = Inbox(consuming.channel(), "orders", ack=False, prefetch=4)
        for number in range(4):
            send(channel, "orders", "shop.pay", number)
        inbox.drain(4)
        for message in inbox.messages[:2]:
            message.reject()
        inbox.consumer.qos(prefetch_count=2)
        for number, task in enumerate(TASKS):
            # Of different priorities, so that their order does not depend on the millisecond.
            send(channel, "orders", task, number + 4, priority=30 - number)
        for number in (24, 25):
            send(channel, "orders", "shop.report", number, delay=3_600_000)
        of = Keys().queue("orders")
        fill(client, of, of.ready, messages)
        names = {"first": (of.ready, 0), "delayed": (of.delayed, 0), "dead": (of.dead, 0), "second": (of.ready, 1)}
        for name, (place, rank) in names.items():
            recording.names[name] = recording.id_of(client.zrange(place, rank, rank)[0].decode())  # type: ignore[index]
        environment = mock.patch.dict(os.environ, {"CELERY_BROKER_URL": recording.url, ACTOR_VARIABLE: "ada"})
        with environment, tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _logged(recording.url):
            _subscribe(recording.url, channel)
            _old_installation(recording.url)
            yield


@contextlib.contextmanager
def _logged(url: str) -> Iterator[None]:
    """Let a queue with an event log have a task that went back once, and another."""
    with kombu.Connection(url, transport_options={"event_log": True}) as connection:
        channel = connection.channel()
        declare(channel, "payments")
        inbox = Inbox(channel, "payments", ack=False, prefetch=1)
        events = Keys().queue("payments").events
        for delivery, settle in enumerate(("requeue", "ack", "ack"), 1):
            if delivery != REDELIVERY:
                send(channel, "payments", "shop.charge", 29 + delivery)
            inbox.drain(delivery)
            getattr(inbox.messages[-1], settle)()
            # The settlement goes out, so that the events have an order.
            told = (3, 5, 8)[delivery - 1]
            wait_until(lambda told=told: inbox.pump(0.01) or channel.session.commands.command("XLEN", events) >= told)  # type: ignore[misc]
        inbox.cancel()
        yield


def _subscribe(url: str, channel: Any) -> None:
    """Let an exchange have a durable subscriber that is away, and another."""
    prices = kombu.Exchange("prices", "fanout", durable=True)
    durable = kombu.Queue("shop-1", prices, durable=True, queue_arguments={"x-durable-subscriber": True})
    with kombu.Connection(url) as before:
        durable(before.default_channel).declare()
    for number in range(15):
        if number == SUBSCRIBED_AT:
            kombu.Queue("shop-2", prices, durable=True)(channel).declare()
        kombu.Producer(channel, prices).publish(number)


def _old_installation(url: str) -> None:
    """Publish tasks with kombu's own transport: most of them wait, one has an eta."""
    with kombu.Connection(f"redis://{url.partition('://')[2].partition('?')[0]}") as connection:
        channel = connection.channel()
        declare_old(channel, "other")
        for number in range(OLD_TASKS - 1):
            send(channel, "other", "shop.pay", number)
        headers = {"task": "shop.report", "id": "order-32", "eta": in_seconds(3_600)}
        publish(channel, "other", [[], {}, {}], headers=headers, serializer="json")


def send(channel: Any, queue: str, task: str, number: int, delay: int | None = None, priority: int = 0) -> None:
    """Publish a task as Celery does, with a number for an argument."""
    headers = {"task": task, "id": f"order-{number}", "argsrepr": f"({number},)", "kwargsrepr": "{}"}
    if delay is not None:
        headers["x-delay"] = delay
    publish(channel, queue, [[number], {}, {}], headers=headers, serializer="json", priority=priority)


def write() -> None:
    """Write the page anew. Names in braces become ids of the recording."""
    with session_server() as server, server.client() as client:
        client.flushdb()
        recording = Recording(server.url() + OPTIONS, client)
        with live_system(recording, client):
            page = PAGE.read_text(encoding="utf-8")
            for name, shown in recording.names.items():
                page = page.replace(f"{{{name}}}", shown)
            PAGE.write_text(recorded(page, recording), encoding="utf-8")
        end_services()


if __name__ == "__main__":
    write()
