"""Workers that start side by side, each on a queue of its own, for a whole module: what takes time is their start and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.celery.app import CONFIG_VARIABLE, JOURNAL_VARIABLE, SETUP_VARIABLE, URL_VARIABLE
from tests.support.apps import JOURNAL_DB
from tests.support.workers import Worker

if TYPE_CHECKING:
    from tests.support.servers import Server

#: Seconds that a worker may take to start among others.
START_S = 60
OPTIONS = ("--without-heartbeat",)


@dataclass(frozen=True)
class Ship:
    """One worker of the fleet: the arguments of `make_app`, and its pool."""

    url: str
    setup: str = "alone"
    pool: str = "solo"
    config: Mapping[str, Any] = field(default_factory=dict)
    #: Whether it may be forked from a process that has loaded us already.
    forked: bool = True


@contextmanager
def fleet(server: Server, logs: Path, ships: Mapping[str, Ship]) -> Iterator[dict[str, Worker]]:
    """Start the workers without waiting; stop them all at the end."""
    with server.client() as client:
        client.flushdb()
    with ExitStack() as stack:
        workers = {}
        for name, ship in ships.items():
            env = {
                SETUP_VARIABLE: ship.setup,
                URL_VARIABLE: ship.url,
                CONFIG_VARIABLE: repr(dict(ship.config)),
                JOURNAL_VARIABLE: server.url(JOURNAL_DB, "redis"),
            }
            worker = Worker(
                "tests.integration.celery.app", logs, pool=ship.pool, env=env, options=OPTIONS, name=name, forked=ship.forked
            )
            workers[name] = stack.enter_context(worker.start(wait=False))
        yield workers
        for worker in workers.values():
            worker.ask_to_stop()
