"""kombu's event loop around one connection, as Celery's worker has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kombu.asynchronous import Hub, set_event_loop

from tests.support.machine_time import machine_time

if TYPE_CHECKING:
    import kombu


@contextmanager
def current_hub() -> Iterator[Hub]:
    """Give a hub that is the process's event loop meanwhile."""
    hub = Hub()
    set_event_loop(hub)
    try:
        yield hub
    finally:
        hub.close()
        set_event_loop(None)


class Loop:
    """A hub that serves one connection."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        self.hub = Hub()
        set_event_loop(self.hub)
        # Bounds the sleep, so that conditions are looked at.
        self.ticking = self.hub.call_repeatedly(0.05, lambda: None)
        connection.transport.register_with_event_loop(connection.connection, self.hub)

    def run(self, until: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Turn until `until` returns true."""
        deadline = machine_time() + timeout_s
        while not until():
            assert machine_time() < deadline, "the loop did not get there in time"
            self.hub.run_once()

    def close(self) -> None:
        self.ticking.cancel()
        if self.connection.connected:
            self.connection.transport.unregister_from_event_loop(self.connection.connection, self.hub)
        self.hub.close()
        set_event_loop(None)
