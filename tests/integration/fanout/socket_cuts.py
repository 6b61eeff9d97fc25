"""Cuts a connection at one of the writes of an operation: while it is opened, or in the middle of its use."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class SocketCuts:
    """Ends the connection of the `at`-th write of this thread, `before` the bytes go out or `after` that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        self._when, self._at, self.writes = when, 0, 0
        self._thread = threading.get_ident()
        original: Callable[..., Any] = socket.socket.sendall

        def sendall(sock: socket.socket, *arguments: Any) -> Any:
            if not self._is_next():
                return original(sock, *arguments)
            if self._when == "after":
                original(sock, *arguments)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            # Fails where nothing has gone out yet.
            return None if self._when == "after" else original(sock, *arguments)

        monkeypatch.setattr(socket.socket, "sendall", sendall, raising=False)

    def _is_next(self) -> bool:
        if not self._at or threading.get_ident() != self._thread:
            return False
        self.writes += 1
        return self.writes == self._at

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Cut at the `number`-th write of what runs inside; `writes` tells how many there were."""
        self._at, self.writes = number, 0
        try:
            yield
        finally:
            self._at = 0
