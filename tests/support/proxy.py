"""A TCP proxy of our own between clients and a server, whose network can be made as bad as a test wants it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

HOST = "127.0.0.1"
CHUNK = 65_536
#: Closes with a reset instead of an end of file.
RESET = struct.pack("ii", 1, 0)

#: Rounds of the loop from an accepted connection to its service.
ROUNDS_OF_ACCEPTING = 5

#: Seconds for what a killed client had sent.
LAST_WORDS_S = 5.0

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Weather:
    """What happens to bytes on their way.

    Attributes:
        passes: False holds everything back, as a network partition does: nobody hears anything, not even a refusal.
        held: one direction that is held back: "commands" or "replies".
        replies: False throws away what the server says.
        accepts: False resets new connections.
        cuts: the next piece passes by half, and its connection ends.
        delay_s: how long each piece takes longer.
        bytes_per_s: how fast they pass; 0 is no limit.
    """

    passes: bool = True
    held: str = ""
    replies: bool = True
    accepts: bool = True
    cuts: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0


class Proxy:
    """Passes connections on to `port()`, looked up for each: a server that restarts may have moved. A context manager.

    The methods may be called from any thread, and hold for open connections as well as for new ones.
    """

    def __init__(self, port: Callable[[], int]) -> None:
        self._target = port
        self._weather = Weather()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._sockets: set[asyncio.StreamWriter] = set()
        #: From clients: readers of open connections, and the bytes that were passed on or held back.
        self._clients: set[asyncio.StreamReader] = set()
        self._taken = 0
        #: Bytes that have come from the server.
        self.answered = 0
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.port = 0

    # ---- life

    def start(self) -> Self:
        self._thread.start()
        self.port = self._wait_for(self._listen())
        return self

    def close(self) -> None:
        self._wait_for(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def url(self, db: int = 0, scheme: str = "redisplus") -> str:
        """Return the address by which clients go through here."""
        return f"{scheme}://{HOST}:{self.port}/{db}"

    # ---- weather

    def blackhole(self) -> None:
        """Hold everything back until `heal`; what was held back then arrives late."""
        self._turn(passes=False)

    def one_way(self, *, commands: bool) -> None:
        """Hold back either the commands or the replies until `heal`; the other direction passes."""
        self._turn(held="commands" if commands else "replies")

    def lose_replies(self) -> None:
        """Let commands through, and throw the answers away; follow it by `reset`."""
        self._turn(replies=False)

    def refuse(self) -> None:
        """Reset every connection, and every new one."""
        self._turn(accepts=False)
        self.reset()

    def cut(self) -> None:
        """Let half of the next piece of each connection through, in either direction, and end the connection."""
        self._turn(cuts=True)

    def slow(self, bytes_per_s: float) -> None:
        """Let so many bytes through a second, in each direction of each connection."""
        self._turn(bytes_per_s=bytes_per_s)

    def delay(self, seconds: float) -> None:
        """Let every piece take so much longer."""
        self._turn(delay_s=seconds)

    def heal(self, *, resets: bool = False) -> None:
        """Be a good network again; with `resets` for new connections: nothing that was on its way on an open one arrives."""
        self._call(self._heal, resets)

    def reset(self) -> None:
        """Reset all open connections; what was held back is gone. New ones are as the weather says."""
        self._call(self._reset)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._sockets) // 2

    @property
    def heard(self) -> int:
        """How many bytes have arrived from clients, whether or not they were let through."""
        return self._call(lambda: self._taken + sum(len(_unread(reader)) for reader in self._clients))

    # ---- inside the loop

    def _turn(self, **changes: Any) -> None:
        self._call(self._set, replace(self._weather, **changes))

    def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        async def call() -> T:
            return function(*arguments, **named)

        return self._wait_for(call())

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _set(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    def _heal(self, resets: bool) -> None:
        self._set(Weather())
        if resets:
            self._reset()

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        # What was accepted just now is served first: a connection whose task is cancelled before that is never closed.
        for _ in range(ROUNDS_OF_ACCEPTING):
            await asyncio.sleep(0)
        self._reset()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _reset(self) -> None:
        for writer in list(self._sockets):
            _reset_one(writer)
        self._sockets.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sockets.add(writer)
        self._clients.add(reader)
        try:
            await self._until_it_passes()
            if not self._weather.accepts:
                return
            server_reader, server_writer = await asyncio.open_connection(HOST, self._target())
            self._sockets.add(server_writer)
            try:
                commands = asyncio.ensure_future(self._pump(reader, server_writer, replies=False))
                pumps = [commands, asyncio.ensure_future(self._pump(server_reader, writer, replies=True))]
                # The end of one direction ends the other: nobody here half-closes.
                _, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                if commands in left and writer.transport.is_closing() and writer in self._sockets:
                    # The client was killed, and an answer to it failed. What it had sent before still arrives.
                    _, left = await asyncio.wait([commands], timeout=LAST_WORDS_S)
                heard_out = commands not in left and commands.exception() is None
                for pump in left | set(pumps) - {commands}:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
                if heard_out and server_writer in self._sockets:
                    self._forget(writer)
                    await _let_read(server_reader, server_writer)
            finally:
                self._forget(server_writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is unreachable, the client has gone, or the proxy ends: the others see a reset
        finally:
            self._clients.discard(reader)
            self._forget(writer)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._sockets.discard(writer)
        _reset_one(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        while data := await _read(reader):
            if replies:
                self.answered += len(data)
            else:
                self._taken += len(data)
            weather = self._weather
            if weather.delay_s:
                await asyncio.sleep(weather.delay_s)
            if weather.bytes_per_s:
                await asyncio.sleep(len(data) / weather.bytes_per_s)
            await self._until_it_passes("replies" if replies else "commands")
            if replies and not self._weather.replies:
                continue
            writer.write(data[: len(data) // 2] if weather.cuts else data)
            await writer.drain()
            if weather.cuts:
                return

    async def _until_it_passes(self, direction: str = "") -> None:
        while not self._weather.passes or (direction and self._weather.held == direction):
            await self._changed.wait()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return what has arrived, also of a sender that was killed since; empty at the end."""
    try:
        return await reader.read(CHUNK)
    except ConnectionError:
        # asyncio would forget what came before the reset.
        buffer = _unread(reader)
        rest = bytes(buffer)
        buffer.clear()
        return rest


async def _let_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the way to the server, and have it read what is on that: a reset, also one that answers its replies, would take it."""
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(LAST_WORDS_S):
            while await reader.read(CHUNK):
                pass


def _unread(reader: asyncio.StreamReader) -> bytearray:
    return reader._buffer  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def _reset_one(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
