"""``python -m benchmarks.calls``: how many calls, files and classes of this package one publish and one task pass.

A reader of the code follows such a path; the figures say how long it is. One publish is `Channel.basic_publish` on a channel
that has published before. One task runs on a solo worker with a backlog: the path from the begin of a no-op task to the begin
of the next one, which covers everything between the claim of a message and its ack once. A buffered task was claimed with others
before.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from celery import Celery
from celery.worker import state

import celery_redis_plus
from celery_redis_plus.consumer import delivery_loop
from celery_redis_plus.testing.server import EmbeddedServer

PACKAGE = str(Path(celery_redis_plus.__file__).parent)
TASKS = 60
#: Tasks that fill the caches before the others are looked at.
WARM = 20
PUBLISHES = 5
#: The prefetch with which most tasks wait in the buffer.
BUFFERED = 10


@dataclass
class CallPath:
    """The calls between two moments."""

    functions: Counter[tuple[str, str]] = field(default_factory=Counter)
    classes: set[str] = field(default_factory=set)
    moves: int = 0
    last_file: str = ""

    def note(self, frame: FrameType) -> None:
        """Count the call that `frame` has just begun, if it is one of ours."""
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        file = code.co_filename[len(PACKAGE) + 1 :]
        self.functions[file, code.co_qualname] += 1
        self.moves += file != self.last_file
        self.last_file = file
        owner = frame.f_locals.get("self")
        if owner is not None:
            self.classes.add(f"{type(owner).__module__}.{type(owner).__qualname__}")

    def __str__(self) -> str:
        files = {file for file, _ in self.functions}
        return (
            f"{self.functions.total()} calls, {len(self.functions)} functions, {len(files)} files, "
            f"{len(self.classes)} classes, {self.moves} moves between files"
        )


class Tracer:
    """Collects paths, one after the other, over all threads."""

    def __init__(self) -> None:
        self.paths: list[CallPath] = [CallPath()]

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; a function for `sys.setprofile`."""
        if event == "call":
            self.paths[-1].note(frame)

    def next(self) -> None:
        """Begin a new path."""
        self.paths.append(CallPath())

    def start(self) -> None:
        """Trace this thread and those that it starts."""
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        """Trace no more."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def shortest(self) -> CallPath:
        """Return the shortest path: maintenance crosses others."""
        return min(self.paths, key=lambda path: path.functions.total())


def trace_publish(url: str) -> CallPath:
    """Return the path of one publish to a queue."""
    app = _app(url)
    tracer = Tracer()
    with app.connection() as connection, connection.channel() as channel:
        channel.queue_declare("calls.publish", durable=True)
        for _ in range(PUBLISHES):
            message = channel.prepare_message("{}")
            tracer.next()
            tracer.start()
            channel.basic_publish(message, exchange="", routing_key="calls.publish")
            tracer.stop()
        channel.queue_delete("calls.publish")
    return tracer.paths[-1]


def trace_task(url: str, prefetch: int) -> CallPath:
    """Return the path of one no-op task of a solo worker with a backlog.

    With a `prefetch` of one it comes by a claim of its own; with more the shortest path has none.
    """
    app = _app(url)
    app.conf.worker_prefetch_multiplier = prefetch
    tracer = Tracer()

    @app.task(name="calls.noop")  # type: ignore[untyped-decorator]
    def noop(number: int) -> None:
        tracer.next()
        if number == TASKS:
            state.should_stop = 0

    for number in range(1, TASKS + 1):
        noop.delay(number)
    options = {"quiet": True, "without_mingle": True, "without_gossip": True, "without_heartbeat": True}
    worker = app.Worker(pool="solo", loglevel="ERROR", **options)
    # A traced task is slow: it shall not end a turn of the loop.
    delivery_loop.TICK_BUDGET_S = 60.0
    state.should_stop = None
    tracer.start()
    try:
        # It ends by SystemExit, as `should_stop` wants.
        with suppress(SystemExit):
            worker.start()
    finally:
        tracer.stop()
    tracer.paths = tracer.paths[WARM:-1]
    return tracer.shortest()


def _app(url: str) -> Celery:
    app = Celery("calls", broker=url)
    app.conf.worker_concurrency = 1
    app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False, worker_redirect_stdouts=False)
    celery_redis_plus.configure_app(app)
    return app


def main() -> None:
    """Print the paths; with ``--functions`` every function of them, too."""
    with EmbeddedServer() as server:
        url = server.url()
        paths = {"one publish": trace_publish(url), "one task": trace_task(url, 1)}
        paths["one buffered task"] = trace_task(url, BUFFERED)
        for name, path in paths.items():
            print(f"{name}: {path}")
            if "--functions" in sys.argv[1:]:
                for (file, function), times in path.functions.items():
                    print(f"  {times:3} {file}: {function}")


if __name__ == "__main__":
    main()
