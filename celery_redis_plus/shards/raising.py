"""Raises the number of shards of a broker, drained or under traffic: each queue whose shard is another one then goes there.

1. Each such queue is declared in its new shard, with its exchanges and bindings, and paused there.
2. The shards' marks tell the new number. Processes with the old one connect again, or are refused.
3. The queues take no more messages in their old shards. Their consumers go on there.
4. Messages go to the new shards, each with its place. A queue without any left is resumed there.

A kill at any moment loses nothing: the next call does the rest. See docs/design/0022-shards.md.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from celery_redis_plus.broker.consumers.pauses import Pausing
from celery_redis_plus.broker.exchanges.declared_topology import numbers_of_shards
from celery_redis_plus.broker.queues.audit import Audit
from celery_redis_plus.connection.broker_at import shards_of
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import OptionError
from celery_redis_plus.keys import SHARDS_FORMAT_VERSION
from celery_redis_plus.maintenance.consumed_queues import ConsumedQueues
from celery_redis_plus.maintenance.sweeper import Sweeper, SweepLimits
from celery_redis_plus.shards.place import Place, connect
from celery_redis_plus.shards.queue_move import QueueMove
from celery_redis_plus.shards.raise_hold import RaiseHold
from celery_redis_plus.shards.raise_topology import PAUSED, RaiseTopology, Unread
from celery_redis_plus.shards.raise_undo import clear_shard, remove_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.options import Options


#: Seconds for which old shards are looked at at least: a process may have declared a queue there at the last moment.
LOOK_S: Final = 2.0
#: Seconds for which a queue waits for messages that consumers have in its old shard.
PATIENCE_S: Final = 30.0
#: Seconds between two sweeps of the old places.
SWEEP_S: Final = 1.0
#: Seconds between two passes that found nothing.
PAUSE_S: Final = 0.05


class ShardsRaise:
    """The raise of the number of shards of one broker; a context manager."""

    def __init__(self, address: Address, options: Options, shards: int, *, patience_s: float = PATIENCE_S) -> None:
        """Connect to all shards, old and new.

        Args:
            address: where the broker is.
            options: the app's, with the old number of shards, or with the new one where a raise is continued.
            shards: how many there shall be.
            patience_s: for how many seconds a queue waits in its new shard for messages that consumers have in the old one.

        Raises:
            OptionError: `shards` is not above the number that the broker has.
            redis.exceptions.RedisError: as `CommandConnection.call`.
        """
        self._address, self._options, self.shards, self._patience_s = address, options, shards, patience_s
        self._stack = ExitStack()
        with ExitStack() as stack:
            first = self._place(stack, shards_of(options)[0].options, 0, shards)
            mark = first.commands.command("GET", first.keys.database_id)
            numbers = numbers_of_shards(mark or b"")
            found = numbers[0]
            if found == shards and len(numbers) > 1:
                # Another call has been here.
                del numbers[0]
            #: How many there were, and before that.
            self.before, self._numbers = numbers[0], numbers
            if mark is None:
                raise OptionError("this broker is empty; allowed is the transport option shards for all of its processes")
            if self.before >= shards:
                raise OptionError(f"this broker has {found} shards; allowed is a number above it")
            if options.shards not in {self.before, shards}:
                raise OptionError(f"transport option shards={options.shards} is not allowed for this broker; allowed: {found}")
            places: dict[str, Place] = {}
            self._old, self._new = (
                [self._known(stack, places, replace(options, shards=number), one) for one in range(number)]
                for number in (self.before, shards)
            )
            self._stack = stack.pop_all()
        #: Lets one command at a time raise it.
        self.hold = RaiseHold(first.commands, first.keys, shards, mark)
        self._topology = RaiseTopology(self._old, self._new, options)
        #: Notes who has raised it.
        self.audit = Audit(self._old[0].commands, self._old[0].keys)
        #: Moves of queues from the old shards.
        self._moves: dict[tuple[int, str], QueueMove] = {}
        self._resumed: set[str] = set()
        #: Broadcasts of the last seconds that no subscriber reads any more: at the end of `run`.
        self.unread: list[Unread] = []
        #: Queue -> since when none of its messages waits in its old shard, on the monotonic clock, in seconds.
        self._drained: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _known(self, stack: ExitStack, places: dict[str, Place], options: Options, number: int) -> Place:
        """Return a shard; some of the old ones have the keys of new ones."""
        own = shards_of(options, number)[0].options
        prefix = own.global_keyprefix
        if prefix not in places:
            places[prefix] = self._place(stack, own, number, self.shards)
        return places[prefix]

    def _place(self, stack: ExitStack, options: Options, number: int, shards: int) -> Place:
        commands = connect(self._address, options, "operator")
        stack.callback(commands.close)
        return Place(number, commands, replace(options, shards=shards))

    # -- what there is ----------------------------------------------------------------------------------------------------

    def moving(self) -> list[QueueMove]:
        """Return the moves of all queues whose shard is another one with the new number. Transient ones go with their clients.

        A queue that is bound to a fanout exchange has a record in each shard: its messages are in its own alone.
        """
        for place in self._old:
            for name in self._topology.names(place):
                target = self._new[shard_of(name, self.shards)]
                is_home = shard_of(name, self.before) == place.number
                if is_home and target is not place and (place.number, name) not in self._moves:
                    self._moves[place.number, name] = QueueMove(name, place, target)
        return list(self._moves.values())

    # -- the steps --------------------------------------------------------------------------------------------------------

    def run(self, stopped: Callable[[], bool]) -> Iterator[int]:
        """Raise the number; yield how many messages each page had. Ends when nothing is left, or where `stopped` says so.

        Raises as `QueueMove.page`.
        """
        done = False
        given_up = self.hold.begin()
        try:
            tells = not self._is_told(self._old[0])
            if given_up is not None:
                self._undo(given_up)
            elif tells and self.hold.is_continued:
                # What it has declared may be deleted by now, or declared otherwise.
                self._undo(self.shards)
            self._trust()
            if tells:
                self._declare()
            self._tell()
            yield from self._move(stopped, fanout=tells or self.hold.is_continued)
            done = not stopped()
        finally:
            self.hold.end(done=done)

    def _move(self, stopped: Callable[[], bool], *, fanout: bool) -> Iterator[int]:
        """Move what is there, and what comes meanwhile."""
        self._topology.follow(fanout=fanout)
        followed = False
        until, sweep_at = time.monotonic() + LOOK_S, 0.0
        sweepers = [self._sweeper(place) for place in self._old]
        while not stopped():
            moved = False
            for move in self._ready():
                while not stopped() and (count := self._page(move)):
                    moved = True
                    yield count
                self._resume(move)
            if time.monotonic() > sweep_at:
                sweep_at = time.monotonic() + SWEEP_S
                for sweeper, place in zip(sweepers, self._old, strict=True):
                    self._sweep(sweeper, [move for move in self._moves.values() if move.source is place])
            self.hold.renew()
            if not followed and time.monotonic() > until:
                # What processes with the old number have bound in the seconds in which they did not know of the new one.
                self._topology.follow(fanout=fanout)
                followed = True
            elif not moved and time.monotonic() > until and not self._finish():
                self._topology.complete()
                self.unread = self._topology.unread()
                # Subscribers with the old number read on until they connect again.
                if not self.unread or time.monotonic() > until + self._patience_s:
                    return
            if not moved:
                time.sleep(PAUSE_S)

    def _page(self, move: QueueMove) -> int:
        self.hold.renew()
        return move.page()

    def unacked(self) -> int:
        """Return how many messages consumers have in the old shards."""
        return sum(move.left()[1] for move in self._moves.values())

    def _trust(self) -> None:
        for place in {id(place): place for place in (*self._old, *self._new)}.values():
            mark = place.commands.command("GET", place.keys.database_id)
            place.topology.trust(mark or b"none")

    def _ready(self) -> list[QueueMove]:
        """Return the moves, with those of queues that were declared meanwhile; their old places take no messages."""
        moves = self.moving()
        for move in moves:
            if move.source.queues.exists(move.name):
                # Already before the number was told, as a rule; a full server would refuse a part of it.
                if not self._topology.is_prepared(move):
                    self._topology.declare_queue(move)
                move.close_source()
                self._resumed.discard(move.name)
        return moves

    def _declare(self) -> None:
        """Mark the new shards, and declare there what goes to them: policies, which stand in all shards, queues and exchanges."""
        self._check_unread()
        old, first = {id(place) for place in self._old}, self._old[0]
        policies = first.commands.command("HGETALL", first.keys.policies)
        for place in self._new:
            if id(place) not in old:
                mark = place.commands.command("GET", place.keys.database_id)
                # Or a raise to another number was begun, and given up.
                if mark is None or numbers_of_shards(mark)[1:] == self._numbers:
                    place.commands.command("SET", place.keys.database_id, self._new_mark(mark or b""))
                if not self._is_told(place):
                    raise OptionError(
                        f"the keys of shard {place.number} of {self.shards} (prefix {place.keys.prefix!r}) are those of another "
                        "broker; allowed is another number"
                    )
                if policies:
                    place.commands.command("HSET", place.keys.policies, *policies)
        self._trust()
        for move in self.moving():
            self.hold.renew()
            self._topology.declare_queue(move)
        self._topology.declare_exchanges()
        self._topology.subscribe_durable()
        self._check_unread()

    def _check_unread(self) -> None:
        """See that no durable subscriber has to read what stands in shards that end. Raises OptionError."""
        for exchange, queue, broadcasts in self._topology.unread():
            raise OptionError(
                f"the durable subscriber {queue!r} has not read {broadcasts:,} broadcast(s) of exchange {exchange!r} in a shard "
                "that ends; allowed is a raise when it has read them: start its worker, or unbind the queue"
            )

    def _undo(self, shards: int) -> None:
        """Remove what the raise to another number has left, which was given up. Raises OptionError where its number was told."""
        if self._numbers[0] == shards:
            raise OptionError(
                f"the raise to {shards} shards is not done; allowed is another number when the command `celery-redis-plus shards "
                f"raise … {shards}` has ended"
            )
        numbers = [shards, *self._numbers]
        in_use = {place.keys.prefix: place for place in self._old}
        former = {
            one.options.global_keyprefix for number in self._numbers for one in shards_of(replace(self._options, shards=number))
        }
        with ExitStack() as stack:
            for number, one in enumerate(shards_of(replace(self._options, shards=shards))):
                self.hold.renew_other()
                prefix = one.options.global_keyprefix
                if prefix in in_use:
                    clear_shard(in_use[prefix], number, self.before, shards)
                elif prefix not in former:
                    remove_shard(self._place(stack, one.options, number, shards), numbers)
        self.hold.renew(undone=shards)

    def _tell(self) -> None:
        """Tell the new number: in the first shard, which decides, before the others."""
        for place in self._old:
            if not self._is_told(place):
                mark = place.commands.command("GET", place.keys.database_id) or b""
                if place is self._old[0]:
                    self.hold.renew(mark=self._new_mark(mark))
                else:
                    place.commands.command("SET", place.keys.database_id, self._new_mark(mark))
        self._trust()

    def _is_told(self, place: Place) -> bool:
        mark = place.commands.command("GET", place.keys.database_id)
        return mark is not None and numbers_of_shards(mark)[0] == self.shards

    def _new_mark(self, mark: bytes) -> bytes:
        """Return a mark with the new number, and the former ones behind it; the id stays, so that no flush is seen."""
        _, _, rest = mark.partition(b".")
        own = rest.split(b".")[0] or secrets.token_hex(8).encode()
        numbers = (b"%d" % number for number in (self.shards, *self._numbers))
        return b".".join([b"%d" % SHARDS_FORMAT_VERSION, own, *numbers])

    def _sweeper(self, place: Place) -> Sweeper:
        """Return what brings back the messages of dead consumers: workers look after the new shards by then.

        The delivery limit of the apps is not known here: only that of the queue itself counts.
        """
        options = self._options
        limits = SweepLimits(options.visibility_timeout, None, options.dead_letter_max, options.dead_letter_ttl)
        return Sweeper(
            place.commands, place.keys, ConsumedQueues(), name=secrets.token_hex(6), limits=limits, forward=lambda _: None
        )  # fmt: skip

    def _sweep(self, sweeper: Sweeper, moves: list[QueueMove]) -> None:
        """Sweep old places of queues."""
        sweeper.watch(move.name for move in moves)
        sweeper.run_soon()
        sweeper.run()
        for move in moves:
            move.note_swept()
            move.keep()

    def _resume(self, move: QueueMove) -> None:
        """Let the consumers of a queue begin in its new shard, once none of its messages waits in the old one.

        What consumers have there may be given back, and stands before all others then: so they have a while to finish.
        """
        if move.name in self._resumed:
            return
        waiting, unacked = move.left()
        if waiting:
            self._drained.pop(move.name, None)
            return
        since = self._drained.setdefault(move.name, time.monotonic())
        # More would be in work at once than a single active consumer, `x-max-unacked` or the message's group allow.
        limits = move.target.commands.command("HMGET", move.target.keys.queue(move.name).meta, "sac", "max_unacked", "groups")
        is_limited = any(limit is not None for limit in limits)
        if unacked and (is_limited or time.monotonic() - since < self._patience_s):
            return
        self._resumed.add(move.name)
        pausing = Pausing(move.target.commands, move.target.keys)
        pause = pausing.paused(move.name)
        before = Pausing(move.source.commands, move.source.keys).paused(move.name)
        if pause is not None and pause.reason == PAUSED:
            if before is None or before.reason == PAUSED:
                pausing.resume(move.name)
            else:
                left_s = None if before.until is None else max(before.until.timestamp() - time.time(), 0.001)
                pausing.pause(move.name, before.reason, left_s)

    def _finish(self) -> bool:
        """Forget queues of which nothing is left; return whether something is left of any.

        One whose last message went a moment ago is resumed first, in the next pass.
        """
        for key, move in list(self._moves.items()):
            if move.name in self._resumed and move.left() == (0, 0):
                move.forget_source()
                del self._moves[key]
        return bool(self._moves)
