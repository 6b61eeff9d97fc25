"""kombu's transport over several shards: it connects to each when it is first needed, and serves their consumers as one."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_redis_plus.connection import forks
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import OptionError, ServerUnreachable, ShardsRaised, ShardUnreachable
from celery_redis_plus.shards.channel import ShardsChannel
from celery_redis_plus.shards.refusals import REFUSALS
from celery_redis_plus.shards.shard import Shard, ShardTransport
from celery_redis_plus.shards.shard_state import ShardState, ShardStates, states_of
from celery_redis_plus.shards.topology import Topology
from celery_redis_plus.transport.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redis_plus.maintenance.service import MaintenanceService
    from celery_redis_plus.options import Options
    from celery_redis_plus.shards.delivery_loop import ShardsLoop

logger = logging.getLogger(__name__)


class ShardsTransport(Transport):
    """One kombu connection to several shards."""

    Channel = ShardsChannel

    #: A queue or consumer of a shard that is down waits until it is back: a worker starts with those that are there.
    defers = False
    _loop: ShardsLoop | None = None

    def serve_worker(self) -> None:
        """Let the queues of a shard that is down wait until it is back: a worker starts with the others."""
        self.defers = True

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Prepare a connection as `client`, a kombu Connection, describes it."""
        super().__init__(client, **kwargs)
        self._shards: list[Shard] = []
        self.topology = Topology()
        #: The shards that were connected to and that the loop does not serve yet.
        self._fresh: set[int] = set()
        self._on_broker: list[Callable[[Transport], object]] = []
        forks.on_fork_in_child(self)

    # -- life -------------------------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect to the first shard that can be reached; the others are connected to when they are needed.

        Raises:
            OptionError: a transport option is unknown, of the wrong type or out of range.
            redis.exceptions.ConnectionError: and its kin, as `errors` names them: no shard can be reached.
        """
        address, options = self.read_address(), self.read_options()
        states = by_option = states_of(address, options)
        if self._connected:
            self._leave()
        while True:
            while states.raised_to:
                options = replace(options, shards=states.raised_to)
                states = states_of(address, options)
            self._states: ShardStates = states
            self._base_options = options
            self._shards = [Shard(state, self.client, self._opened) for state in states.all]
            try:
                self._connect_to_any()
            except ShardsRaised as raised:
                states[0].note_raised(raised.shards)
            except OptionError:
                if states is by_option:
                    raise
                # The database was emptied since, and begun anew.
                by_option[0].raised_to = 0
                options, states = self.read_options(), by_option
            else:
                break
        self._connected = True
        return self

    def raised(self) -> ServerUnreachable | None:
        """Return the error of a connection to fewer shards than there are by now; None where it is right."""
        shards = self._states.raised_to
        if not shards:
            return None
        return ServerUnreachable(f"the broker has {shards} shards instead of {len(self._shards)} now: connect again")

    def _connect_to_any(self) -> None:
        refusal: BaseException | None = None
        for shard in self._shards:
            try:
                shard.open()
            except ShardUnreachable as error:
                refusal = refusal or error.__cause__ or error
            except REFUSALS as error:
                refusal = refusal or error
            else:
                return
        if refusal is not None:
            raise refusal

    def _opened(self, number: int, transport: ShardTransport) -> None:
        """Join a shard's services with those of the others, and serve its consumers."""
        shared, join = transport.session.shared, partial(self._join, number)
        shared.on_service = join
        if shared.service is not None:
            join(shared.service)
        self._fresh.add(number)
        if self._loop is not None:
            self._loop.wake()

    def _serve(self, number: int, transport: ShardTransport) -> None:
        """Have the loop, in its thread, serve a shard that was connected to, and consume there what the application does."""
        transport.session.service.start()
        self.delivery_loop.add(number, transport.delivery_loop)
        for channel in tuple(self.channels):
            channel.resume(number)
        for tell in self._on_broker:
            tell(transport)

    def _join(self, number: int, service: MaintenanceService) -> None:
        """Have a shard's maintenance run while any is consumed, and take dead messages to the others."""
        from celery_redis_plus.shards.dead_letters import Neighbours, ShardMoves

        states, tasks = self._states, service.tasks
        states[number].service = service
        service.needed_besides = states.consumes
        neighbours = Neighbours(states)
        tasks.elsewhere = ShardMoves(tasks.dead_letters, tasks.commands, number, len(states), neighbours, neighbours.close)

    @property
    def options(self) -> Options:
        """The transport options that all shards have."""
        return self._base_options

    @property
    def brokers(self) -> tuple[Transport, ...]:
        """The transports to the shards that are open."""
        return tuple(transport for shard in self._shards if (transport := shard.transport) is not None)

    def broker(self, number: int) -> Transport:
        """Return the transport to a shard. Raises as `open`."""
        return self.open(number)

    def each_broker(self, tell: Callable[[Transport], object]) -> None:
        """Call `tell` with the transport to each shard, now or when it is connected to."""
        self._on_broker = [tell]
        for shard in self._shards:
            transport = shard.transport
            if transport is not None and transport.number not in self._fresh:
                tell(transport)

    def of_queue(self, queue: str) -> Transport:
        """Return the transport to the shard that has a queue. Raises as `open`."""
        return self.open(self.number_of(queue))

    def number_of(self, queue: str) -> int:
        """Return the number of the shard that has a queue."""
        known = self.topology.queues.get(queue)
        if known is not None and known.placed is not None:
            return known.placed
        return shard_of(queue, len(self._shards))

    @property
    def numbers(self) -> range:
        """The numbers of all shards."""
        return range(len(self._shards))

    def shard_state(self, number: int) -> ShardState:
        """Return what is known of a shard."""
        return self._states[number]

    def open(self, number: int, wait_s: float = 0.0) -> ShardTransport:
        """Return the transport to a shard. Raises as `Shard.open`."""
        return self._shards[number].open(wait_s)

    def live(self, first: int) -> Iterator[ShardTransport]:
        """Yield the transports to the shards that can be reached, that of the shard `first` before the others."""
        for number in (*range(first, len(self._shards)), *range(first)):
            try:
                transport = self.open(number)
            except ShardUnreachable as error:
                logger.debug("%s", error)
            except REFUSALS as error:
                self._states[number].note_lost(error)
            else:
                yield transport

    def lose(self, number: int, error: Exception) -> None:
        """Leave a shard whose connection has broken. Raises `error` where something is consumed and no other shard is left."""
        self._shards[number].lose(error)
        if self._consumes() and not self.brokers:
            raise error

    def stop(self, number: int, error: Exception) -> None:
        """Leave a shard that refuses what this process needs, until later. Raises `error` where no other shard is left."""
        if all(state.is_down for state in self._states.all if state.number != number):
            raise error
        self._leave_shard(number, error)

    def _leave_shard(self, number: int, error: Exception) -> None:
        """Leave a shard, whose server may answer, with its consumers; they are started when it is connected to again."""
        self._fresh.discard(number)
        transport = self._shards[number].transport
        if transport is not None:
            transport.session.abandon()
        if self._loop is not None:
            self._loop.remove(number)
        self.lose(number, error)

    def _consumes(self) -> bool:
        return any(channel.wants_any for channel in self.channels)

    def maintain(self) -> None:
        """Connect to all shards that can be reached: whoever consumes does the maintenance of all."""
        for _ in self.live(0):
            pass

    def _take_turn(self) -> None:
        """Do what is due before each turn of the loop. Raises where all consumers have to begin anew."""
        if not self._consumes():
            return
        raised = self.raised()
        if raised is not None:
            raise raised
        self._connect_again()

    def _connect_again(self) -> None:
        """Connect to the shards that are back: their consumers go on. While anything is consumed, all shards are maintained."""
        for shard in self._shards:
            # One that has broken is lost first, as its loop tells: a server that hangs would keep this thread.
            if shard.transport is not None or shard.state.is_down or self.delivery_loop.serves(shard.state.number):
                continue
            try:
                shard.open()
            except ShardUnreachable as error:
                logger.debug("%s", error)
            except REFUSALS as error:
                self._leave_shard(shard.state.number, error)
        while self._fresh:
            number = self._fresh.pop()
            transport = self._shards[number].transport
            if transport is None:
                continue
            try:
                self._serve(number, transport)
            except (ShardUnreachable, *REFUSALS) as error:
                # Its server may answer, and refuse: another connection starts all of its consumers.
                self._leave_shard(number, error)
        if not self.brokers:
            raise next((state for state in self._states.all if state.is_down), self._states[0]).unreachable()

    def close_connection(self, connection: Any) -> None:
        """Close all channels, then the connections; what waits to be settled goes out first."""
        if not self._connected:
            return
        self._connected = False
        self._leave()

    def _leave(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        while self.channels:
            self.channels[-1].close()
        for shard in self._shards:
            shard.close()

    def forked(self) -> None:
        """Leave the event loop to the parent, in a child; the shards' transports do the same."""
        if self._loop is not None:
            self._loop.forked()

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection is usable: each shard that breaks is connected to again.

        Consumers of one that leads to fewer shards than there are hear of it by their next `drain_events`, or the loop's turn.
        """
        return self._connected and (not self._states.raised_to or self._consumes())

    def read_broadcasts_again(self, queue: str) -> None:
        """Do nothing: the transport of each shard does."""

    # -- events -----------------------------------------------------------------------------------------------------------

    @property
    def delivery_loop(self) -> ShardsLoop:  # type: ignore[override]
        """What serves the consumers of all channels on all shards: made when there is the first."""
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    from celery_redis_plus.shards.delivery_loop import ShardsLoop

                    self._loop = ShardsLoop(self.lose, self._take_turn)
            for state in self._states.all:
                state.wake_when_back(self._loop.waker)
        return self._loop

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Leave the event loop."""
        if self._loop is not None:
            self._loop.detach()
