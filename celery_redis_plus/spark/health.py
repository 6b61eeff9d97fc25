"""What a running pipeline tells: a line, a status file, `/health` and Prometheus' `/metrics`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from celery_redis_plus.errors import InvalidArgument


@dataclass
class Health:
    """The state of `spark run`.

    Attributes:
        ingesting: whether its ingest runs.
        starts: how often that was started.
        ingest_error: how it has ended, until it has stored something since.
        lag: events of each queue that are not stored yet; None where the broker does not answer.
        unreadable: queues whose events cannot be read, since somebody else has written their keys; the others are read.
        lag_seconds: how old the first of them is.
        waiting_events: events that are stored, and not in the tables yet.
        waiting_bytes: what they take on the disk.
        freshness_s: what is missing in the tables is at most so old, 0 where nothing is; None is not known yet.
        wanted_s: what `freshness_s` should be at most.
        events: events put into the tables since the start.
        fold_s: seconds of the last aggregation.
        losses: missing events by reason.
        files: files of the tables.
        version: of the tables.
        error: why the last aggregation failed; '' where it did not.
    """

    wanted_s: float
    ingesting: bool = False
    starts: int = 0
    ingest_error: str = ""
    lag: Mapping[str, int] | None = None
    unreadable: Sequence[str] = ()
    lag_seconds: Mapping[str, float] = field(default_factory=dict)
    waiting_events: int = 0
    waiting_bytes: int = 0
    freshness_s: float | None = None
    events: int = 0
    fold_s: float = 0.0
    losses: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    version: int = 0
    error: str = ""

    @property
    def well(self) -> bool:
        """Whether the tables are about as new as they should be."""
        late = self.freshness_s is None or self.freshness_s > 3 * self.wanted_s + 60
        return self.ingesting and not self.error and not late

    def status(self) -> dict[str, Any]:
        """Return all of it, for the status file and `/health`."""
        return {"well": self.well, **asdict(self)}

    def line(self, rate: float) -> str:
        """Return a line about it; `rate` in events a second."""
        oldest = max(self.lag_seconds.values(), default=0.0)
        lag = "unknown" if self.lag is None else f"{sum(self.lag.values()):,} events, {oldest:.0f} s"
        fresh = "unknown" if self.freshness_s is None else f"{self.freshness_s:.0f} s"
        lost = f", {sum(self.losses.values()):,} lost" if any(self.losses.values()) else ""
        unread = f"; cannot read the events of {', '.join(map(repr, self.unreadable))}" if self.unreadable else ""
        trouble = f"; {self.error}" if self.error else ("" if self.ingesting else "; ingest does not run")
        return f"lag {lag}, freshness {fresh}, {rate:,.0f} events/s, {self.files:,} files{lost}{unread}{trouble}"

    def metrics(self) -> str:
        """Return it as Prometheus reads it.

        Source: https://prometheus.io/docs/instrumenting/exposition_formats/
        """
        samples: dict[str, tuple[str, str, list[tuple[str, float]]]] = {
            "up": ("gauge", "Whether ingest runs.", [("", int(self.ingesting))]),
            "ingest_starts_total": ("counter", "How often ingest was started.", [("", self.starts)]),
            "lag_events": ("gauge", "Events that are not stored yet.", _labelled("queue", self.lag or {})),
            "unreadable_queues": ("gauge", "Queues whose events cannot be read.", [("", len(self.unreadable))]),
            "lag_seconds": ("gauge", "Age of the first of them.", _labelled("queue", self.lag_seconds)),
            "waiting_events": ("gauge", "Events that are stored and not in the tables yet.", [("", self.waiting_events)]),
            "waiting_bytes": ("gauge", "What these take on the disk.", [("", self.waiting_bytes)]),
            "freshness_seconds": (
                "gauge",
                "What is missing in the tables is at most so old.",
                [] if self.freshness_s is None else [("", self.freshness_s)],
            ),
            "events_total": ("counter", "Events put into the tables.", [("", self.events)]),
            "fold_seconds": ("gauge", "Duration of the last aggregation.", [("", self.fold_s)]),
            "lost_events": ("gauge", "Events that the tables lack.", _labelled("why", self.losses)),
            "files": ("gauge", "Files of the tables.", [("", self.files)]),
        }
        lines = []
        for name, (kind, doc, values) in samples.items():
            full = f"celery_redis_plus_spark_{name}"
            lines += [f"# HELP {full} {doc}", f"# TYPE {full} {kind}", *(f"{full}{label} {value}" for label, value in values)]
        return "\n".join([*lines, ""])


def _labelled(label: str, values: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(f'{{{label}="{_escaped(name)}"}}', value) for name, value in values.items()]


def _escaped(name: str) -> str:
    """Return it as a label's value. Characters that UTF-8 cannot encode, of `os.fsdecode` for instance, become their numbers."""
    text = name.encode(errors="backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Server(ThreadingHTTPServer):
    """A server at an address of IPv4, or of IPv6."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


@contextmanager
def served(listen: str, health: Callable[[], Health]) -> Iterator[int]:
    """Serve `/health` (status 503 where it is not well) and `/metrics` at `HOST:PORT`; yield the port. '' serves nothing.

    Raises:
        InvalidArgument: it is no such address, or another program has it.
    """
    if not listen:
        yield 0
        return
    host, _, port = listen.rpartition(":")
    try:
        server = _Server((host.strip("[]") or "127.0.0.1", int(port)), _handler(health))
    except (ValueError, OSError, OverflowError) as error:
        raise InvalidArgument(f"--listen {listen!r}: {error}; allowed: HOST:PORT") from None
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(health: Callable[[], Health]) -> type[BaseHTTPRequestHandler]:
    import json

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now, path = health(), urlsplit(self.path).path
            if path == "/health":
                self._answer(200 if now.well else 503, "application/json", json.dumps(now.status()))
            elif path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", now.metrics())
            else:
                self._answer(404, "text/plain; charset=utf-8", "/health, /metrics\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_words: object) -> None:
            """Be silent: a scrape comes every few seconds."""

    return Handler
