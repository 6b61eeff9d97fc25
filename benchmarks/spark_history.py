"""``python -m benchmarks.spark_history``: what the pipeline's jobs cost when the tables have a long history.

The events of some days are made up, with 300 queues and etas of up to 30 days, and go through a server, `ingest` and a daily
aggregation into tables. Then the jobs are measured that should cost what is new: an aggregation of 10,000 further events, and a
report of one day. Every day has the same number of events, so that a history of ten times the days is the only difference.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.machine import describe
from celery_redis_plus import events
from celery_redis_plus.keys import Keys
from celery_redis_plus.spark import report
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.compaction import compact
from celery_redis_plus.spark.expiry import expire
from celery_redis_plus.spark.fold import Folded, fold
from celery_redis_plus.spark.manifest import Manifest
from celery_redis_plus.spark.snapshot import Snapshot
from celery_redis_plus.spark.summaries import Period, summaries
from celery_redis_plus.testing.server import EmbeddedServer

if TYPE_CHECKING:
    import redis

DAY_US = 86_400_000_000
#: 2025-11-24 00:00:00 UTC.
BEGIN_US = 1_763_942_400_000_000
#: Of so many messages, one has an eta, and one fails.
ETA_EVERY, FAILURE_EVERY = 33, 50
#: Published, claimed, acked; delayed and promoted with an eta.
EVENTS_A_MESSAGE = 3 + 2 / ETA_EVERY
#: Events that are added before each measured aggregation.
NEWS = 10_000
ROUNDS = 5
_PIECE = 5000


class History:
    """Made-up events, in the order of their time.

    Args:
        queues: how many there are; messages go to them by turns.
        a_day: events of a day, about.
    """

    def __init__(self, queues: int, a_day: int) -> None:
        self.queues = queues
        self.spacing_us = round(DAY_US * EVENTS_A_MESSAGE / a_day)
        self.messages = 0
        self.now_us = BEGIN_US
        #: (time, queue, event) of what happens later.
        self.later: list[tuple[int, int, str]] = []

    def until(self, end_us: int) -> list[tuple[int, int, str]]:
        """Return what happens until a time, from where the last call has ended."""
        found = self.later
        while self.now_us < end_us:
            found += self._life(self.now_us)
            self.now_us += self.spacing_us
        # Events of one time stay in the order of their message's life.
        found.sort(key=itemgetter(0))
        place = next((place for place, (ts, _, _) in enumerate(found) if ts >= end_us), len(found))
        self.later = found[place:]
        return found[:place]

    def _life(self, start_us: int) -> Iterator[tuple[int, int, str]]:
        number, self.messages = self.messages, self.messages + 1
        queue = number * 7919 % self.queues
        tag = f"{start_us // 1000:011x}{number & 0xFFFFFFFF:08x}.{queue}"
        # Of 30 days, spread evenly.
        wait_us = number * 2_654_435_761 % (30 * DAY_US) if number % ETA_EVERY == 0 else 0
        at_us = start_us + wait_us

        def event(name: str, ts: int, own: str = "\t\t\t\t\t") -> tuple[int, int, str]:
            return ts, queue, f"{name}\t{ts}\t{tag}\t{own}{_NO_DESCRIPTION}"

        eta = at_us // 1000 if wait_us else ""
        described = f"{number:032x}\tshop.task{queue % 100}\t0\t\t\t\tq{queue}\t0\t{eta}\t200\t"
        yield start_us, queue, f"published\t{start_us}\t{tag}\t\t\t\t\t\t\t{described}"
        if wait_us:
            yield event("delayed", start_us, f"\t\t\t\t{wait_us // 1000}\t")
            yield event("promoted", at_us)
        claimed_us = at_us + 20_000 + number % 97 * 1000
        yield event("claimed", claimed_us, f"1\tcelery@{number % 8}\t\t\t\t")
        acked_us = claimed_us + 50_000 + number % 89 * 1000
        yield event("acked", acked_us, "\t\tfailure\tValueError: x\t\t" if number % FAILURE_EVERY == 0 else "\t\t\t\t\t")


_NO_DESCRIPTION = "\t" * len(events.DESCRIPTION)


class Feed:
    """Writes events into the streams of a server."""

    def __init__(self, server: EmbeddedServer, queues: int) -> None:
        self.client: redis.Redis = server.client()
        self.port = server.port
        names = [f"q{number}" for number in range(queues)]
        self.client.sadd(Keys().event_logs, *names)
        self.epoch = BEGIN_US // 1000
        keys = [Keys().queue(name) for name in names]
        for of in keys:
            self.client.hset(of.events_meta, mapping={"epoch": self.epoch, "version": events.SCHEMA_VERSION})
        self.heads = [b"*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n" % (len(of.events), of.events) for of in keys]
        self.begun = [False] * queues

    def add(self, made: list[tuple[int, int, str]]) -> int:
        """Add events; return how many."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            replies = connection.makefile("rb")
            for first in range(0, len(made), _PIECE):
                piece = made[first : first + _PIECE]
                connection.sendall(b"".join(self._command(queue, text.encode()) for _, queue, text in piece))
                for _ in piece:
                    # "$18", then the id.
                    if not replies.readline().startswith(b"$"):
                        raise AssertionError(replies.readline())
                    replies.readline()
        return len(made)

    def _command(self, queue: int, value: bytes) -> bytes:
        place = b"%d-%s" % (self.epoch, b"*" if self.begun[queue] else b"1")
        self.begun[queue] = True
        return b"%s$%d\r\n%s\r\n$1\r\nv\r\n$%d\r\n%s\r\n" % (self.heads[queue], len(place), place, len(value), value)


class Costs:
    """What jobs took: seconds by the clock, and of this process' processors, which others on the machine change less."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def of(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a job."""
        wall, cpu = time.perf_counter(), time.process_time()
        done = work()
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.cpu.setdefault(name, []).append(time.process_time() - cpu)
        return done

    def median(self, name: str) -> tuple[float, float]:
        """Return the median of the seconds by the clock and of the processors."""
        return median(self.wall[name]), median(self.cpu[name])


def measure(server: EmbeddedServer, root: Path, days: int, a_day: int, queues: int) -> dict[str, tuple[float, float]]:
    """Build a history and measure; return the seconds of each job, and of the whole the sum."""
    history, feed, costs = History(queues, a_day), Feed(server, queues), Costs()
    source = {"url": server.url(), "readerName": "bench", "trimOnCommit": True}
    total = 0

    def stored(end_us: int) -> int:
        count = feed.add(history.until(end_us))
        costs.of("ingest", lambda: ArrowIngest(root, source).run(threading.Event(), print, once=True))
        return count

    for day in range(1, days + 1):
        total += stored(BEGIN_US + day * DAY_US)
        while costs.of("daily fold", lambda: fold(root, most=1_000_000, kept_s=0.0)).events:
            pass
    print(f"  {total:,} events of {history.messages:,} messages; {_tables(root)}", flush=True)
    step_us = round(history.spacing_us * NEWS / EVENTS_A_MESSAGE)
    end_us = BEGIN_US + days * DAY_US
    for _ in range(ROUNDS):
        end_us += step_us
        stored(end_us)
        _news(costs.of("fold of 10,000", lambda: fold(root)))
    last = datetime.fromtimestamp(BEGIN_US / 1e6, UTC).date() + timedelta(days=days - 1)
    for _ in range(ROUNDS):
        costs.of("report of a day", lambda: _report(root, last, root.parent / "report.html"))
    before, after = costs.of("compact", lambda: compact(root, kept_s=0.0))
    print(f"  compact: {before:,} files are {after:,}; {_tables(root)}", flush=True)
    end_us += step_us
    stored(end_us)
    _news(costs.of("fold after compact", lambda: fold(root)))
    costs.of("report after compact", lambda: _report(root, last, root.parent / "report.html"))
    done = costs.of("expire half", lambda: expire(root, last - timedelta(days=days // 2)))
    print(f"  expire: {done.days} days, {done.events:,} events", flush=True)
    summed = ("ingest", "daily fold")
    return {
        name: costs.median(name) if name not in summed else (sum(costs.wall[name]), sum(costs.cpu[name])) for name in costs.wall
    }


def _news(done: Folded) -> None:
    print(f"  news: {done.events:,} events of {done.messages:,} messages, published on {len(done.dates)} days", flush=True)


def _report(root: Path, day: date, output: Path) -> None:
    period = Period.parse(f"{day}..{day + timedelta(days=1)}")
    output.write_text(report.render(summaries(Snapshot(root), period=period)), encoding="utf-8")


def _tables(root: Path) -> str:
    """Return the most files of a day, and the bytes."""
    manifest = Manifest.read(root)
    dated = {"events": manifest.events, **manifest.tables}
    most = max(len(files) for dates in dated.values() for files in dates.values())
    size = sum((root / name).stat().st_size for name in manifest.referenced())
    open_files = [root / name for files in manifest.tables["open"].values() for name in files]
    return (
        f"{size / 1e6:,.0f} MB; at most {most} files of a table and day; {len(open_files)} files of open messages, "
        f"{sum(file.stat().st_size for file in open_files) / 1e6:,.1f} MB"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_history", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000], metavar="N")
    parser.add_argument("--a-day", type=int, default=333_334, metavar="N", help="events of a day")
    parser.add_argument("--queues", type=int, default=300, metavar="N")
    arguments = parser.parse_args()
    found = []
    for count in arguments.events:
        days = max(1, round(count / arguments.a_day))
        with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
            if not found:
                address = server.url().partition("//")[2].partition("/")[0]
                print(", ".join(f"{name} {value}" for name, value in describe(address).items()))
            print(f"{days} days of {arguments.a_day:,} events, {arguments.queues} queues", flush=True)
            found.append(measure(server, Path(folder) / "tables", days, arguments.a_day, arguments.queues))
    print(f"load {os.getloadavg()[0]:.1f}; seconds by the clock (and of the processors)")
    for name in found[0]:
        figures = "".join(f" {each[name][0]:8.2f} ({each[name][1]:6.2f})" for each in found)
        print(f"{name:<22}{figures}   last against first: {found[-1][name][1] / found[0][name][1]:.2f}")


if __name__ == "__main__":
    main()
