"""One shard, as one connection of the application uses it: opened at first use, lost and opened again alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import ServerUnreachable
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS
from celery_redis_plus.transport.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.options import Options
    from celery_redis_plus.shards.shard_state import ShardState


class ShardTransport(Transport):
    """The transport to one shard: a whole one."""

    is_part = True
    _is_left = False

    def __init__(self, client: Any, *, state: ShardState, **kwargs: Any) -> None:
        """Prepare a connection to the shard that `state` knows."""
        #: What is known of the shard; and its number.
        self.shard_state = state
        self.number = state.number
        #: Fanout exchanges that lack no subscriber here.
        self.complete: set[str] = set()
        super().__init__(client, **kwargs)

    def read_options(self) -> Options:
        """Return the shard's options, with its prefix."""
        return self.shard_state.options

    def establish_connection(self) -> Transport:
        """Connect, as `Transport.establish_connection`. What breaks is not opened again: the shard is lost until it answers."""
        super().establish_connection()
        session = self.session
        session.shared.topology.on_raised = self.shard_state.note_raised
        try:
            self.shard_state.see_number(session.shared.topology, session.commands, session.keys)
        except BaseException:
            self.abandon()
            raise
        session.connector.before_open = self._check_opening
        return self

    def _check_opening(self, purpose: str) -> None:
        self.shard_state.check()
        if purpose == "commands":
            # It was open: the server has closed it. Nobody waits here until a dead one is back.
            error = ServerUnreachable("the server has closed the connection")
            self.shard_state.note_lost(error)
            raise self.shard_state.unreachable(error)

    @property
    def name(self) -> str:
        """The shard's name in the log."""
        return f"shard {self.number} of {self.options.shards}, "

    def abandon(self) -> None:
        """Leave a connection that has broken. Nothing waits: what is to be settled is maintenance's, until the shard is back."""
        self._is_left = True
        self.close_connection(None)

    def _flush(self) -> None:
        if not self._is_left:
            super()._flush()


class Shard:
    """One shard, as one connection of the application uses it."""

    def __init__(self, state: ShardState, client: Any, on_open: Callable[[int, ShardTransport], None]) -> None:
        """Connect to nothing yet; `on_open` is called with each transport that is opened."""
        self.state = state
        self._client, self._on_open = client, on_open
        self._lock = lock_of(self)
        self._transport: ShardTransport | None = None

    @property
    def transport(self) -> ShardTransport | None:
        """The transport, where there is one whose connection works as far as this process knows."""
        transport = self._transport
        return None if transport is None or transport.session.broken else transport

    def open(self, wait_s: float = 0.0) -> ShardTransport:
        """Return a transport that works, connecting where there is none.

        Raises:
            ShardUnreachable: the shard cannot be reached; or it is down, and does not come back within `wait_s` seconds.
            redis.exceptions.RedisError, OptionError: the server answers, and refuses this connection.
        """
        self.state.check(wait_s)
        transport = self._transport
        if transport is not None and transport.verify_connection(None) and not transport.session.broken:
            return transport
        with self._lock:
            if self._transport is not transport and self._transport is not None:
                return self._transport
            self._leave()
            transport = ShardTransport(self._client, state=self.state)
            try:
                transport.establish_connection()
            except CONNECTION_ERRORS as error:
                self.state.note_lost(error)
                raise self.state.unreachable(error) from error
            self._transport = transport
        self._on_open(self.state.number, transport)
        return transport

    def lose(self, error: Exception) -> None:
        """Leave a broken connection, and ask for the shard until it is back."""
        self.state.note_lost(error)
        with self._lock:
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.abandon()

    def close(self) -> None:
        """Close the connection in order."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close_connection(None)
