"""What a process knows of each shard of a broker: where it is, whether it can be reached, and its maintenance.

A shard that was lost is asked for by a thread of its own until it answers. Nobody else waits for it: an event loop that serves
the other shards must not stand still for the `socket_connect_timeout` of a dead node.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from redis.exceptions import RedisError

from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.connection import forks
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.shard_layout import shard_prefixes
from celery_redis_plus.error_translation import translate
from celery_redis_plus.errors import (
    CeleryRedisPlusError,
    CommandUnavailable,
    NoPermission,
    OptionError,
    ServerUnreachable,
    ShardUnreachable,
)
from celery_redis_plus.keys import Keys
from celery_redis_plus.shards.refusals import REFUSALS, REFUSES_WRITES
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redis_plus.connection.address import Address
    from celery_redis_plus.maintenance.service import MaintenanceService
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Seconds between two tries to reach a shard that was lost. The first one comes at once, unless it was lost just before.
TRY_AGAIN_S: Final = 0.3
LOST_AGAIN_S: Final = 2.0
#: Seconds between two tries, at most, to use a shard whose server answers, and refuses what is asked each time.
MOST_PAUSE_S: Final = 30.0
#: Seconds that one try may take; each fourth one may take as long as any connection.
ATTEMPT_S: Final = 1.0
PATIENT_TRY: Final = 4
#: Seconds for which a shard is asked for that nobody uses any more.
UNUSED_S: Final = 60.0


class Wakes(Protocol):
    """What ends the wait of a loop."""

    def wake(self) -> None:
        """End it. From any thread."""


class ShardState:
    """One shard, as this process knows it. Thread-safe."""

    def __init__(self, number: int, address: Address, options: Options, first: ShardState | None) -> None:
        """Know nothing of the shard yet.

        Args:
            number: the shard's.
            address: where the broker is.
            options: those of the shard, with its prefix.
            first: the first shard, None for that one itself.
        """
        self.number, self.address, self.options = number, address, options
        self._first = first
        #: Of the first shard: this process has seen that the broker has as many shards as its options say.
        self.number_seen = False
        #: Of the first shard: how many shards there are by now, where that is another number; 0 where not.
        self.raised_to = 0
        #: Its maintenance in this process; None before there is any.
        self.service: MaintenanceService | None = None
        self._lock = lock_of(self)
        self._error: Exception | None = None
        #: It was lost, and has not answered since; or its server answers, and refuses.
        self.is_down = self._refuses = False
        #: It is not asked for any more.
        self.is_over = False
        self._back = threading.Event()
        self._back.set()
        self._used_at = self._lost_at = 0.0
        #: Of refusals, one after the other.
        self._back_at, self._pause_s = float("-inf"), 0.0
        #: Loops that are told when it is back.
        self._wakers: weakref.WeakSet[Wakes] = weakref.WeakSet()
        forks.on_fork_in_child(self)

    def __str__(self) -> str:
        return f"shard {self.number} of {self.options.shards} ({self.address.display()})"

    def forked(self) -> None:
        """Know nothing, in a child: it has no thread that asks, and no maintenance of its parent's."""
        self.service, self.is_down, self._back = None, False, threading.Event()
        self._back.set()

    def unreachable(self, error: Exception | None = None) -> ShardUnreachable:
        """Return the error of a shard that is down, or of which `error` came."""
        return ShardUnreachable(f"{self} is unreachable: {error or self._error}")

    def see_number(self, topology: DeclaredTopology, commands: CommandConnection, keys: Keys) -> None:
        """See that the shard has the mark of a broker with this number of shards; one without a mark gets it.

        Raises:
            OptionError: processes with another number of shards use it.
            ServerUnreachable: it has no mark, and the first shard, which tells the number, cannot be asked.
            redis.exceptions.RedisError: as `CommandConnection.call`.
        """
        if topology.unchecked and commands.command("GET", keys.database_id) is None:
            self._ask_first()
        topology.check_flush(commands, keys)
        (self._first or self).number_seen = True

    def note_raised(self, shards: int) -> None:
        """Note that the broker has more shards by now: connections to the old ones are left."""
        first = self._first or self
        if first.raised_to != shards:
            first.raised_to = shards
            logger.warning(
                "%s was raised to %d: connections are opened again with that number. Set the option to it",
                f"transport option shards={self.options.shards}", shards,
            )  # fmt: skip
        self._wake()

    def _ask_first(self) -> None:
        """See that the first shard tells this number of shards. Raises as `see_number`.

        With another number the other shards have other prefixes, which are empty: so an empty one tells nothing.
        """
        first = self._first
        if first is None or first.number_seen:
            return
        try:
            first.check()
            commands = CommandConnection(Connector(first.address, first.options), "shards", timeout=first.options.socket_timeout)
            try:
                keys = Keys(commands.connector.options.global_keyprefix)
                first.see_number(DeclaredTopology(first.options.shards), commands, keys)
            finally:
                commands.close()
        except CONNECTION_ERRORS as error:
            first.note_lost(error)
            raise ServerUnreachable(
                "no process has used it yet, and the first shard, which tells how many there are, cannot be asked"
            ) from error

    def check(self, wait_s: float = 0.0) -> None:
        """Raise ShardUnreachable where it is down, and does not come back within `wait_s` seconds.

        Nobody waits for a server that answers, and refuses: as without shards its refusal is told at once.
        """
        if not self.is_down:
            return
        self._used_at = time.monotonic()
        if not self._back.wait(0.0 if self._refuses else wait_s):
            raise self.unreachable()

    def note_lost(self, error: Exception) -> None:
        """Note that it cannot be reached, and ask for it from now on."""
        with self._lock:
            self._used_at = time.monotonic()
            if self.is_down:
                return
            self._error = error
            self._back.clear()
            self.is_down = True
            pause_s = TRY_AGAIN_S if self._used_at - self._lost_at < LOST_AGAIN_S else 0.0
            self._refuses = isinstance(error.__cause__ if isinstance(error, ShardUnreachable) else error, REFUSES_WRITES)
            if self._refuses:
                pause_s = self._refused(error)
            self._lost_at = self._used_at
            name = f"celery-redis-plus-shard-{self.number}"
            thread = threading.Thread(target=self._ask, args=(pause_s,), name=name, daemon=True)
        _asked_for.add(self)
        try:
            thread.start()
        except RuntimeError as refusal:  # the interpreter ends, or there are too many threads
            logger.debug("%s is not asked for: %s", self, refusal)
            self._note_back()

    def _refused(self, error: Exception) -> float:
        """Return the seconds to wait for a server that answers and refuses: it may do so each time when it is used."""
        again = self._used_at - self._back_at < LOST_AGAIN_S
        self._pause_s = min(max(2 * self._pause_s, TRY_AGAIN_S), MOST_PAUSE_S) if again else 0.0
        if isinstance(error, REFUSALS) and not again:
            logger.error("%s is left, and tried again later; the other shards go on: %s", self, error)
        return self._pause_s

    def wake_when_back(self, waker: Wakes) -> None:
        """Wake a loop each time when the shard is back."""
        self._wakers.add(waker)

    def _ask(self, pause_s: float) -> None:
        """Try to connect until that works, or nobody has asked for the shard for long."""
        told, pid = False, os.getpid()
        patient = Connector(self.address, self.options)
        quick = Connector(self.address, replace(self.options, socket_connect_timeout=ATTEMPT_S))
        for number in itertools.count(1):
            if os.getpid() != pid:
                return
            connector = quick if number % PATIENT_TRY else patient
            time.sleep(pause_s)
            if self.is_over:
                return
            pause_s = TRY_AGAIN_S
            try:
                self._try(connector)
            except (RedisError, OSError, CeleryRedisPlusError) as error:
                self._error, self._refuses = error, isinstance(error, REFUSES_WRITES)
                if not told:
                    told = True
                    logger.warning("%s is lost: %s; the other shards go on", self, error)
                if time.monotonic() - self._used_at < UNUSED_S or len(self._wakers):
                    continue
                logger.info("%s is asked for no more: nobody uses it", self)
            else:
                logger.log(logging.INFO if told else logging.DEBUG, "%s is back", self)
            self._note_back()
            return

    def _try(self, connector: Connector) -> None:
        """Connect, and write: a server that refuses writes lets everybody in. Raises what says that it is lost."""
        connection = connector.open("shards", timeout=self.options.socket_timeout)
        keys = Keys(connector.options.global_keyprefix)
        try:
            # Changes nothing: there is no such key.
            connection.send_command("PEXPIRE", keys.client_wakeup("shards"), 1)
            connection.read_response()
            connection.send_command("GET", keys.database_id)
            # Who connects hears of another number.
            with suppress(OptionError):
                if connection.read_response() is None:
                    self._ask_first()
        except (RedisError, OSError) as exc:
            error = translate(exc, connector.address)
            if not isinstance(error, (NoPermission, CommandUnavailable)):
                raise error from exc
        finally:
            connection.disconnect()

    def _note_back(self) -> None:
        self.is_down, self._back_at = False, time.monotonic()
        self._back.set()
        self._wake()

    def _wake(self) -> None:
        for waker in list(self._wakers):
            with suppress(OSError):
                waker.wake()


class ShardStates:
    """All shards of a broker, as this process knows them."""

    def __init__(self, address: Address, options: Options) -> None:
        """Know nothing of the shards of the broker at `address` yet."""
        prefixes = shard_prefixes(options.global_keyprefix, options.shards)
        self.all: list[ShardState] = []
        for number, prefix in enumerate(prefixes):
            first = self.all[0] if self.all else None
            self.all.append(ShardState(number, address, replace(options, global_keyprefix=prefix), first))

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, number: int) -> ShardState:
        return self.all[number]

    @property
    def raised_to(self) -> int:
        """How many shards there are by now, where that is another number; 0 where not."""
        return self.all[0].raised_to

    def consumes(self) -> bool:
        """Return whether this process consumes in any shard: then it does the maintenance of all.

        A queue that no process consumes may be in any; its messages expire, and go on when they are dead.
        """
        services = [state.service for state in self.all]
        return any(service is not None and not service.closed and service.consumed.all() for service in services)


#: Those of this process, by address and options.
_states: dict[tuple[object, ...], ShardStates] = {}
#: Those that were lost at some time.
_asked_for: weakref.WeakSet[ShardState] = weakref.WeakSet()
_states_lock = lock_of(sys.modules[__name__], "_states_lock")


def states_of(address: Address, options: Options) -> ShardStates:
    """Return what this process knows of the shards of a broker, made at first use."""
    key = address, options
    with _states_lock:
        states = _states.get(key)
        if states is None:
            states = _states[key] = ShardStates(address, options)
        return states


def forget(matching: Callable[[ShardState], bool] = lambda _: True) -> None:
    """Forget what is known of shards: a test's server is emptied, or ends."""
    with _states_lock:
        for key, states in list(_states.items()):
            if any(map(matching, states.all)):
                del _states[key]


def end() -> None:
    """Forget all shards, and ask for none any more that was lost: a test is over.

    Who asks for a shard gives an empty database the mark of its own number of shards.
    """
    forget()
    for state in list(_asked_for):
        state.is_over = True


# A child has no threads of its parent, and services of its own.
os.register_at_fork(after_in_child=_states.clear)
