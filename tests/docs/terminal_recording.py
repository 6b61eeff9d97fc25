"""The terminal recordings of docs/command-line.md: runs the page's commands, and compares or writes what they print.

`python -m tests.docs.terminal_recording` writes the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import kombu

from celery_redis_plus.cli.main import main
from celery_redis_plus.keys import Keys
from tests.support.filling import fill
from tests.support.inbox import Inbox, declare, publish
from tests.support.servers import session_server
from tests.support.services import end_services

if TYPE_CHECKING:
    import redis

PAGE = Path(__file__).parents[2] / "docs/command-line.md"
MESSAGES = 100_000
#: What the recording keeps as dead letters: more than the default.
OPTIONS = "?dead_letter_max=200000"
TASKS = (*("shop.pay",) * 19, "shop.mail")
#: A block of commands with what they print, or of what the web page shows at a path.
RECORDING = re.compile(r"^```console\n(.*?)^```$|^<!-- web page: (\S+) -->\n```text\n.*?^```$", re.MULTILINE | re.DOTALL)
ID = re.compile(r"\b[0-9a-f]{11}(?:1[0-9a-f]{7}|0[0-9a-f]{7})[.=~-][0-9a-z]+")
SESSION = re.compile(r"\b([0-9a-f]{12,40})(\.\d+)?(?![-.=~\w])")
#: What differs from run to run, and what stands in the page for it.
SHOWN: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00"), "2026-11-22T15:00:00+00:00"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "2026-11-22 15:00:00"),
    (re.compile(r"until \d\d:\d\d:\d\d UTC"), "until 16:00:00 UTC"),
    (SESSION, lambda match: ("5f0c27a1e9b34d86" * 3)[: len(match[1])] + (match[2] or "")),
    (re.compile(r'("pid": )\d+'), r"\g<1>4711"),
    # In a table, with its width.
    (re.compile(r"(worker-1 +)(\d+)"), lambda match: match[1] + "4711".ljust(len(match[2]))),
    (re.compile(r"\bnot interested\b|\bnotified\b"), "interested"),
    (re.compile(r'("tag": )"[^"]*"'), r'\g<1>"None1"'),
    (re.compile(r'("oldest_s": )[\d.]+'), r"\g<1>5.0"),
    (re.compile(r"('time': )\d+"), r"\g<1>1795359600"),
    (re.compile(r"\b\d+ (?:s|min)\b"), lambda match: "5 s".ljust(len(match[0]))),
)


class Recording:
    """Runs commands, and shows each message's id by a number of its own."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        #: Ids that the page's source names: `{first}`.
        self.names: dict[str, str] = {}

    def run(self, command: str) -> str:
        """Run one line of the page; return what it printed as the page shows it."""
        for shown, real in {one: id_ for id_, one in self._shown.items()}.items():
            command = command.replace(shown, real)
        program, *arguments = shlex.split(command)
        assert program == "celery-redis-plus"
        printed, told = io.StringIO(), io.StringIO()
        # Progress, which a slow machine shows, is no part of the page.
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            status = main(arguments)
        # Danger is what `doctor` may find.
        assert status in ({0, 1} if arguments[0] == "doctor" else {0}), f"{command}: {status}\n{told.getvalue()}"
        return self.shown(printed.getvalue())

    def look(self, path: str) -> str:
        """Return what the web page shows at a path, as text."""
        raise NotImplementedError(path)

    def id_of(self, real: str) -> str:
        """Return what stands in the page for an id, of the same length."""
        if real not in self._shown:
            stem, flag = real[:19], real[19:]
            self._shown[real] = f"19a4d2f3b1c{len(self._shown) + 1:08x}"[: len(stem)] + flag
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
        if match[2]:
            return f"<!-- web page: {match[2]} -->\n```text\n{recording.look(match[2])}\n```"
        printed = []
        for line in match[1].splitlines():
            if line.startswith("$ "):
                printed += [line, *recording.run(line.removeprefix("$ ")).splitlines()]
        return "```console\n" + "\n".join(printed) + "\n```"

    return RECORDING.sub(block, page)


@contextlib.contextmanager
def live_system(url: str, client: redis.Redis, recording: Recording) -> Iterator[None]:
    """Fill a broker: queue `orders` of 100,000 messages with a consumer, delayed ones and dead letters; queue `other`."""
    host = mock.patch("socket.gethostname", return_value="worker-1")
    with host, kombu.Connection(url + OPTIONS) as connection, kombu.Connection(url + OPTIONS) as consuming:
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
        fill(client, of, of.ready, MESSAGES)
        names = {"first": (of.ready, 0), "delayed": (of.delayed, 0), "dead": (of.dead, 0)}
        for name, (place, rank) in names.items():
            recording.names[name] = recording.id_of(client.zrange(place, rank, rank)[0].decode())  # type: ignore[index]
        before = os.environ.get("CELERY_BROKER_URL")
        os.environ["CELERY_BROKER_URL"] = url + OPTIONS
        try:
            yield
        finally:
            if before is None:
                del os.environ["CELERY_BROKER_URL"]
            else:
                os.environ["CELERY_BROKER_URL"] = before


def send(channel: Any, queue: str, task: str, number: int, delay: int | None = None, priority: int = 0) -> None:
    """Publish a task as Celery does, with a number for an argument."""
    headers = {"task": task, "id": f"order-{number}", "argsrepr": f"({number},)", "kwargsrepr": "{}"}
    if delay is not None:
        headers["x-delay"] = delay
    publish(channel, queue, [[number], {}, {}], headers=headers, serializer="json", priority=priority)


def write() -> None:
    """Write the page anew. Names in braces become ids of the recording."""
    recording = Recording()
    with session_server() as server, server.client() as client:
        client.flushdb()
        with live_system(server.url(), client, recording):
            page = PAGE.read_text(encoding="utf-8")
            for name, shown in recording.names.items():
                page = page.replace(f"{{{name}}}", shown)
            PAGE.write_text(recorded(page, recording), encoding="utf-8")
        end_services()


if __name__ == "__main__":
    write()
