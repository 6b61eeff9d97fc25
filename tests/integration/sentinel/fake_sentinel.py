"""A Sentinel that says what a test wants: lies, nonsense, nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class FakeSentinel:
    """Names `master`. `mode`: "ok", "hang" (no answer) or "close" (none, and the connection ends)."""

    master: tuple[str, object]
    epoch: object = 1
    #: The master whose state it tells; None: the one that it names.
    told: tuple[str, object] | None = None
    #: It names this one as soon as it has named the other once, and its state has this epoch.
    successor: tuple[tuple[str, object], object] | None = None
    mode: str = "ok"
    port: int = 0
    #: How often it was asked for the address of the master.
    asked: int = 0
    _connections: list[socket.socket] = field(default_factory=list)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        commands = connection.makefile("rb")
        try:
            while line := commands.readline():
                words = [commands.read(int(commands.readline()[1:]) + 2)[:-2].decode() for _ in range(int(line[1:]))]
                if self.mode == "close":
                    connection.shutdown(socket.SHUT_RDWR)
                elif self.mode == "ok":
                    connection.sendall(self._reply(words))
        except (OSError, ValueError):
            return

    def _reply(self, words: list[str]) -> bytes:
        host, port = self.master
        if words[0].upper() != "SENTINEL":
            return b"+OK\r\n"
        if words[1].upper() == "MASTER":
            host, port = self.told or self.master
            state = [
                "name",
                "m",
                "ip",
                host,
                "port",
                port,
                "flags",
                "master",
                "num-other-sentinels",
                2,
                "config-epoch",
                self.epoch,
            ]
            return _array(state)
        self.asked += 1
        if self.successor is not None:
            self.master, self.epoch = self.successor
        return _array([host, port])


def _array(items: list[object]) -> bytes:
    texts = [str(item).encode() for item in items]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)


@contextmanager
def fake_sentinels(count: int, port: int) -> Iterator[list[FakeSentinel]]:
    """Yield Sentinels that name the server at `port`."""
    fakes = [FakeSentinel(("127.0.0.1", port)) for _ in range(count)]
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in fakes]
    try:
        for fake, listener in zip(fakes, listeners, strict=True):
            fake.port = listener.getsockname()[1]
            threading.Thread(target=fake._serve, args=(listener,), daemon=True).start()  # noqa: SLF001 - its own thread
        yield fakes
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for fake in fakes:
            for connection in fake._connections:  # noqa: SLF001 - as above
                connection.close()


def url_of(fakes: list[FakeSentinel]) -> str:
    """Return the broker URL that names them."""
    return f"redisplus+sentinel://{';'.join(f'127.0.0.1:{fake.port}' for fake in fakes)}/0?master_name=m"
