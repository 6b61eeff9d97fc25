"""Bounds what clients hold: a connection that sends half a request, or takes no answer, would keep its descriptor for ever.

No login is needed for that, and uvicorn bounds neither. Its own limit of connections answers 503 to everybody.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds from the begin of a connection, or from its last answer, to the end of the next answer.
EXCHANGE_S: Final = 30.0
#: Connections that stay; of more, the one whose present request was awaited longest is closed.
MAX_CONNECTIONS: Final = 100
#: Connections that asyncio accepts in a row before it runs anything else, so that there is always a descriptor for the next
#: one. With `MAX_CONNECTIONS`, a process that may open 256 files is safe; usual are 1,024.
BACKLOG: Final = 32


class BoundedConnection(H11Protocol):
    """A connection of one client, as uvicorn has it, with an end."""

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; close the longest connection where there are too many."""
        super().connection_made(transport)
        self._begin()
        if len(self.connections) > MAX_CONNECTIONS:
            min((one for one in self.connections if isinstance(one, BoundedConnection)), key=BoundedConnection.ends_at).close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._begin()
        super().on_response_complete()

    def ends_at(self) -> float:
        """Return when it is closed at the latest, by the event loop's clock."""
        return 0.0 if self._ends is None else self._ends.when()

    def close(self) -> None:
        """Close it at once, whatever is on the way."""
        self.connections.discard(self)
        self.transport.abort()

    def _begin(self) -> None:
        self._cancel()
        self._ends = self.loop.call_later(EXCHANGE_S, self.close)

    def _cancel(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
