"""Queues as the server knows them: declare, steer, size, purge, delete, keep alive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from celery_redis_plus.broker.arguments.argument_rules import STEERING
from celery_redis_plus.broker.arguments.limits import Limits
from celery_redis_plus.broker.arguments.queue_arguments import RULE_FIELDS, QueueArguments, check_queue_name
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.exchanges.known_queues import KnownQueue
from celery_redis_plus.broker.queues.queue_ids import new_id
from celery_redis_plus.broker.queues.queue_registry import QueueRegistry
from celery_redis_plus.connection.forks import fork_safe_property
from celery_redis_plus.errors import InvalidArgument, PreconditionFailed
from celery_redis_plus.event_log.settings import EventLogSettings
from celery_redis_plus.keys import FORMAT_VERSION, encode_name
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.broker.queues.policies import Policies, PolicyList
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.connection.persistent_connection import Argument
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Messages freed, or kept alive, by one script call: some 1 ms of the server's time.
FREED_A_CALL = 100


class Sizes(NamedTuple):
    """How many messages a queue has, by state."""

    ready: int
    delayed: int
    unacked: int


class _Written(NamedTuple):
    """What the declare script has answered: the record that stands now."""

    #: `created`, `exists`, or `differs` where the queue was declared otherwise.
    status: bytes
    id: bytes
    #: Those in force.
    arguments: bytes
    #: Those it was declared with; empty where they are in force.
    declared: bytes
    sizes: Sizes


class Queues:
    """Queue records over one connection."""

    def __init__(
        self,
        commands: CommandConnection,
        keys: Keys,
        *,
        transient_ttl_s: float,
        owner_timeout_s: float = 60,
        event_log: EventLogSettings | None = None,
        topology: DeclaredTopology | None = None,
        on_mismatch: str = "keep",
    ) -> None:
        """Use `commands`.

        Without `x-expires` an unused auto-delete queue vanishes after `transient_ttl_s` seconds, and an exclusive one after
        `owner_timeout_s` without a sign of life of its owner. `event_log` says how
        the events of the queues that are declared here are written. What is declared goes into `topology`. `on_mismatch` is the
        option.
        """
        self._on_mismatch = on_mismatch
        self._event_log = event_log or EventLogSettings()
        self._commands = commands
        self._topology = DeclaredTopology() if topology is None else topology
        self._keys = keys
        #: The broker's lists of queues.
        self.registry = QueueRegistry(commands, keys)
        self._transient_ttl_ms = int(transient_ttl_s * 1000)
        self._known = self._topology.records
        #: Returns what this process has read of a queue's record, or None. Every publish asks.
        self.cached = self._known.get
        self._owner_ttl_ms = int(owner_timeout_s * 1000)

    @fork_safe_property
    def _policies(self) -> PolicyList:
        # A queue that stands is declared without a look at them.
        from celery_redis_plus.broker.queues.policies import PolicyList

        return PolicyList(self._commands, self._keys)

    def ttl_ms(self, arguments: QueueArguments) -> int | None:
        """Return how long an unused queue with these arguments lives, in ms; None is for ever."""
        ttl_ms = arguments.ttl_ms(self._transient_ttl_ms)
        return min(ttl_ms, self._owner_ttl_ms) if ttl_ms is not None and arguments.exclusive else ttl_ms

    def owner_keeps(self, arguments: QueueArguments) -> bool:
        """Return whether an exclusive queue lives as long as its owner, used or not: not one with a shorter `x-expires`."""
        expires = arguments.arguments.get("x-expires")
        return not isinstance(expires, int) or expires > self._owner_ttl_ms

    def declare(self, name: str, arguments: QueueArguments) -> Sizes:
        """Write the queue's record, or check that the one that stands agrees. One that was only assumed is replaced.

        Arguments that only steer may differ: the option `on_mismatch` decides.

        Raises:
            InvalidQueueName: the name is empty or too long.
            PreconditionFailed: the queue exists with other arguments; the text names the first that differs.
        """
        name = check_queue_name(name)
        if self._topology.unchecked:
            self._topology.check_flush(self._commands, self._keys)
        ttl_ms = self.ttl_ms(arguments)
        fields = self._rules(name, arguments)
        owner = self._topology.owners.get(name) if arguments.exclusive else None
        if owner is not None:
            # Only `claim_restricted` looks who claims.
            fields += (("owner", owner), ("restricted", "declared"))
        written = self._write(name, arguments, ttl_ms, fields)
        in_force = QueueArguments.decode(written.arguments) if written.status in {b"differs", b"exists"} else arguments
        changes = written.status == b"differs" and self._is_to_change(name, arguments, written)
        self.registry.enlist(name, "" if ttl_ms is None else ttl_ms)
        logged = not arguments.transient and self._set_event_log(name, arguments.event_log)
        always_swept = bool(in_force.always_swept or logged)
        if always_swept:
            self.registry.ensure_swept(name)
        self._known.put(name, KnownQueue(written.id, in_force, always_swept, declared=arguments))
        self._topology.declared(name, arguments)
        if changes or (written.status == b"created" and not arguments.transient):
            try:
                self.steer(name, arguments if changes else None)
            except PreconditionFailed as error:
                # The queue is usable as it is: its consumers begin.
                logger.warning("%s: the queue keeps what it has", error, extra={"queue": name})
        return written.sizes

    def _rules(self, name: str, arguments: QueueArguments) -> list[tuple[str, Argument]]:
        """Return the fields of a queue's record that follow from its arguments, for the scripts: name, value."""
        rules: list[tuple[str, Argument]] = [*arguments.rules()]
        limited = Limits.of(arguments).encode()
        if limited:
            # The scripts that make room have no key of the publishers who wait for it: only such queues pay for one.
            rules += (("limited", limited), ("waiting_publishers", self._keys.queue(name).waiting_publishers))
        return rules

    def _is_to_change(self, name: str, arguments: QueueArguments, written: _Written) -> bool:
        """Return whether these arguments shall replace those with which a queue was declared, as `on_mismatch` says.

        Raises PreconditionFailed where they may not differ.
        """
        declared = QueueArguments.decode(written.declared or written.arguments)
        difference = arguments.difference(declared, name)
        if difference is None:
            return False
        fixed = arguments.difference(declared, name, besides=STEERING)
        if fixed is not None or self._on_mismatch == "error":
            raise PreconditionFailed(fixed or difference)
        if self._on_mismatch == "apply":
            return True
        if self._topology.is_new_mismatch(name, difference):
            logger.warning(
                "%s: the queue keeps what it has. To change it: `celery-redis-plus policy`, or on_mismatch='apply' among the "
                "transport options of the app with the new arguments",
                difference, extra={"queue": name},
            )  # fmt: skip
        return False

    def steer(
        self, name: str, declared: QueueArguments | None = None, *, policies: Policies | None = None, strict: bool = False
    ) -> bool:
        """Bring the arguments of a queue in force that its declaration and the policies say; return whether that changed any.

        Args:
            name: of the queue; one without a record is left alone.
            declared: what it is declared with from now on, equal in all arguments that do not steer; None: as it was.
            policies: as they were read for many queues; they are read again where they have changed since.
            strict: raise InvalidArgument where the policy does not go with the queue's other arguments; else it is logged, and
                does not apply.

        Raises:
            PreconditionFailed: `x-max-length-bytes` can be set only where it was, or in an empty queue: bytes were not counted.
        """
        meta = self._keys.queue(name).meta
        while True:
            # In this order: the script refuses where the list has changed since.
            policies = policies or self._policies.read()
            queue_id, stands, was_declared, *rules = self._commands.command(
                "HMGET", meta, "id", "arguments", "declared", *RULE_FIELDS
            )  # fmt: skip
            if queue_id is None or stands is None:
                return False
            before = QueueArguments.decode(stands)
            base = before if was_declared is None else QueueArguments.decode(was_declared)
            wanted = base if declared is None else base.with_steering_of(declared)
            in_force = self._by_policy(name, wanted, policies, strict=strict)
            if (
                in_force.encode() == before.encode()
                and wanted.encode() == base.encode()
                and self._has_rules(name, in_force, rules)
            ):
                return False
            if self._replace(name, queue_id, policies.version, in_force, wanted):
                logger.info("queue %r has new arguments: %s", name, in_force.encode(), extra={"queue": name})
                return True
            policies = None

    def _has_rules(self, name: str, arguments: QueueArguments, stored: Sequence[bytes | None]) -> bool:
        """Return whether the record says what follows from the arguments; `restricted` follows from consumers, too."""
        given = dict(self._rules(name, arguments))
        return all(
            field == "restricted" or (value or b"") == _stored(given.get(field, ""))
            for field, value in zip(RULE_FIELDS, stored, strict=True)
        )

    def _by_policy(
        self, name: str, arguments: QueueArguments, policies: Policies, *, strict: bool
    ) -> QueueArguments:  # fmt: skip
        policy = None if arguments.transient else policies.applying(name)
        if policy is None:
            return arguments
        try:
            return arguments.steered(name, policy.arguments)
        except InvalidArgument as error:
            if strict:
                raise
            logger.error("policy %r does not apply to queue %r: %s", policy.pattern, name, error, extra={"queue": name})  # noqa: TRY400
            return arguments

    def _replace(
        self, name: str, known_id: bytes, version: bytes, arguments: QueueArguments, declared: QueueArguments
    ) -> bool:  # fmt: skip
        """Put arguments into force; return False where the record, or the list of policies, is another one by now."""
        given = dict(self._rules(name, arguments))
        fields = [item for field in RULE_FIELDS for item in (field, given.get(field, ""))]
        differs = arguments.encode() != declared.encode()
        new_id = self._commands.call(
            script("replace_arguments"), [*self._keys.queue(name).consumer_keys, self._keys.policies],
            known_id, version, arguments.encode(), declared.encode() if differs else "", *fields,
        )  # fmt: skip
        if new_id == b"COUNT":
            raise PreconditionFailed(
                f"argument 'x-max-length-bytes' of queue {name!r} cannot be set while the queue has messages: their bytes were "
                "not counted. Allowed in an empty queue; 'x-max-length' can be set at any time"
            )
        if new_id:
            if arguments.always_swept:
                self.registry.ensure_swept(name)
            self._known.put(name, KnownQueue(new_id, arguments, arguments.always_swept, declared=declared))
        return bool(new_id)

    def _set_event_log(self, name: str, wanted: bool | None) -> bool | None:
        """Set whether the queue's events are written; return that, None where it stays as it is."""
        wanted = self._event_log.wanted if wanted is None else wanted
        if wanted is not None:
            keys = self._keys.queue(name)
            record = self._event_log.record(keys) if wanted else b""
            self._commands.call(script("set_event_log"), [keys.meta, self._keys.event_logs], record, encode_name(name))
        return wanted

    def _write(
        self,
        name: str,
        arguments: QueueArguments,
        ttl_ms: int | None,
        fields: Iterable[tuple[str, Argument]],
        known_id: str = "",
    ) -> _Written:
        """Run the declare script; a new record gets the known id, or one that is drawn."""
        keys = self._keys.queue(name)
        ttl = "" if ttl_ms is None else ttl_ms
        call = (script("declare"), keys.declare, arguments.encode(), ttl)
        rules = [item for field in fields for item in field]
        status, *rest = self._commands.call(*call, known_id, FORMAT_VERSION, *rules)
        if status == b"remains":
            # Its messages are gone with the queue, whether a janitor came by or not.
            self.clear_away(name)
            status = b"id"
        if status == b"id":
            # Another process may have raised the number of shards, so that the queue is in another one now.
            self._topology.check_flush(self._commands, self._keys)
            status, *rest = self._commands.call(*call, self._draw_id(), FORMAT_VERSION, *rules)
            # A queue that is deleted later was not lost by a flush before: that has to be noticed while the queue stands.
            self._topology.check_flush(self._commands, self._keys)
        queue_id, arguments_in_force, *sizes, declared = rest
        return _Written(status, queue_id, arguments_in_force, declared, Sizes(*sizes))

    def _draw_id(self) -> str:
        reserved = self._topology.last_reserved_id(self._keys)
        return new_id(int(self._commands.call(script("next_queue_id"), [self._keys.queue_ids], reserved)))

    def restore(self, name: str, queue_id: bytes = b"") -> None:
        """Give a lasting queue a record whose arguments are unknown here: a declaration replaces it."""
        self._write(name, QueueArguments(durable=True), None, [("assumed", 1)], queue_id.decode())
        self.registry.enlist(name, "")
        with suppress(PreconditionFailed):
            self.steer(name)
        if self._set_event_log(name, None):
            self.registry.ensure_swept(name)

    def renumber(self, name: str) -> None:
        """Give a queue a new id, which goes into the tags of its messages from now on."""
        self._commands.command("HSET", self._keys.queue(name).meta, "id", self._draw_id())

    def arguments(self, name: str) -> QueueArguments | None:
        """Return what the queue was declared with, here or elsewhere, as `known` does."""
        known = self.known(name)
        return None if known is None else known.arguments

    def declared(self, name: str) -> QueueArguments | None:
        """Return what the queue was declared with, whatever policies say; None where it has no record. Raises as `known` does."""
        stands, declared = self._commands.command("HMGET", self._keys.queue(check_queue_name(name)).meta, "arguments", "declared")
        return None if stands is None else QueueArguments.decode(declared or stands)

    def known(self, name: str) -> KnownQueue | None:
        """Return the queue's record; None where it has none. It may be an old one: see `known_queues`.

        Raises:
            InvalidQueueName: no queue can be called so.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        return self.cached(name) or self.read(name)

    def read(self, name: str) -> KnownQueue | None:
        """Return the queue's record as it stands on the server now. Raises as `known` does."""
        keys = self._keys.queue(check_queue_name(name))
        queue_id, stands, declared = self._commands.command("HMGET", keys.meta, "id", "arguments", "declared")
        if stands is None:
            self._known.forget(name)
            return None
        before = self._known.get(name)
        if before is not None and before.id == queue_id:
            return before
        known = KnownQueue(
            queue_id or b"", QueueArguments.decode(stands), declared=None if declared is None else QueueArguments.decode(declared)
        )
        self._known.put(name, known)
        return known

    def ensure_swept_once(self, name: str) -> None:
        """Have the queue swept, also without consumers: messages that expire are on their way. Raises as `known` does."""
        known = self.known(name)
        if known is None or not known.always_swept:
            self.registry.ensure_swept(name)
            if known is not None:
                known.always_swept = True

    def end_event_log(self, name: str) -> int:
        """Trim the events of a queue that writes none any more, and remove them when it is time; a deleted one is such a queue.

        Returns how many went that a registered reader had not read.
        """
        keys = self._keys.queue(name)
        places = (keys.meta, keys.trash, keys.events, keys.events_meta, keys.events_readers, self._keys.event_logs)
        record = self._event_log.record(keys)
        _, overrun = self._commands.call(script("end_event_log"), places, encode_name(name), record)
        return int(overrun)

    def exists(self, name: str) -> bool:
        """Tell whether the queue has a record."""
        return bool(self._commands.command("HEXISTS", self._keys.queue(name).meta, "id"))

    def revive(self, name: str) -> bool:
        """Give a queue without a record one, unless it was transient and is gone; return whether it has one.

        Its arguments are those that this process knows of; else it is a lasting queue, until somebody declares it who knows.

        A publisher that never declared its queue must not lose messages; a reply to a client that has left must not make a
        queue that will never be read.

        Raises:
            OptionError: the queues were spread over another number of shards since this process connected.
        """
        self._topology.check_flush(self._commands, self._keys)
        deadline = self._commands.command("ZSCORE", self._keys.queues, encode_name(name))
        if deadline is not None and float(deadline) != float("inf"):
            logger.debug("a message for %r is unroutable: the queue was transient and is gone", name)
            return False
        record = self._known.get(name)
        known = self._topology.queue(name) if record is None else record.declared or record.arguments
        if known is None:
            logger.info("queue %r has no record on the server; declaring it as a lasting queue", name, extra={"queue": name})
            self.restore(name)
            return True
        logger.warning("the record of queue %r has vanished from the server; it is declared again", name, extra={"queue": name})
        # Should it have been declared otherwise meanwhile, it has a record.
        with suppress(PreconditionFailed):
            self.declare(name, known)
        return True

    def sizes(self, name: str) -> Sizes:
        """Return how many messages the queue has: ready, delayed, unacked."""
        keys = self._keys.queue(name)
        places = (keys.ready, keys.delayed, keys.index, keys.held)
        ready, delayed, unacked, held = self._commands.ask([("ZCARD", place) for place in places])
        return Sizes(ready + held, delayed, unacked)

    def consumer_count(self, name: str) -> int:
        """Return how many consumers the queue has whose processes live."""
        return int(self._commands.call(script("count_consumers"), self._keys.queue(name).living))

    def purge(self, name: str, progress: Callable[[int], object] = lambda _: None) -> int:
        """Remove all waiting messages, ready and delayed; return how many. `progress` is told of each batch that is freed."""
        purged = int(self._commands.call(script("purge"), self._keys.queue(name).purge))
        while freed := self.free_page(name):
            progress(freed)
        return purged

    def delete(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False, if_id: bytes = b""
    ) -> int | None:  # fmt: skip
        """Delete the queue with all its messages; return how many ready ones there were, None where a condition forbade it.

        With `if_id` only while its record has this id. The caller removes its bindings.
        """
        deleted, ready, transient, event_log = self._delete(name, if_unused=if_unused, if_empty=if_empty, if_id=if_id)
        if not deleted:
            return None
        self._topology.deleted(name)
        # Before the messages are freed, which may take long: a consumer would take the queue for a lost one, and declare it.
        if transient:
            self.registry.remember([name])
        else:
            self._commands.command("ZREM", self._keys.queues, encode_name(name))
        self.empty_trash(name, event_log)
        return int(ready)

    def let_expire(self, name: str, after_ms: int, if_id: bytes) -> None:
        """Have an unused transient queue vanish soon, with its messages, unless it is declared or consumed again."""
        self._commands.call(script("delete"), self._keys.queue(name).delete, 1, 0, 0, if_id, after_ms)
        self.registry.enlist(name, after_ms)

    def empty_trash(self, name: str, event_log: bytes | str = "") -> None:
        """Free the messages of a queue that was purged or deleted; `event_log` is the record of the events of a deleted one."""
        while self.free_page(name, event_log):
            pass

    def free_page(self, name: str, event_log: bytes | str = "") -> int:
        """Do a part of `empty_trash`; return how many messages are freed, 0 at the end."""
        keys = self._keys.queue(name)
        return int(self._commands.call(script("empty_trash"), [keys.trash, keys.message, keys.meta], FREED_A_CALL, event_log))

    def touch(self, name: str) -> bool:
        """Keep a transient queue alive, its messages too where that is due; return False where the queue is gone."""
        page = 0
        while (page := self.touch_page(name, page)) > 0:
            pass
        return page == 0

    def touch_page(self, name: str, page: int, life_ms: int = 0) -> int:
        """Do a part of `touch`, from 0 on; return where the next one begins, 0 at the end, -1 where the queue is gone.

        The queue lives for `life_ms` at least, unless somebody uses it longer.
        """
        keys = self._keys.queue(name)
        # The trash is not used, and may hold what an earlier, lasting queue has left. A transient queue has no groups;
        # the script knows the keys of limiters.
        others = [
            key
            for key in keys.structure()
            if key not in {keys.meta, keys.trash, keys.held, keys.groups, keys.limited, keys.limited_until}
        ]
        extend = script("extend_queue_ttl")
        return int(self._commands.call(extend, [keys.meta, keys.message, *others], page, FREED_A_CALL, life_ms))

    def clear_away(self, name: str) -> bool:
        """Remove what a queue without a record has left; return False where it has one."""
        deleted = self.remove_remains(name)
        if deleted:
            self.empty_trash(name)
        return deleted

    def remove_remains(self, name: str) -> bool:
        """Do as `clear_away`, but leave the messages in the trash, for `free_page`."""
        return bool(self._delete(name, if_gone=True)[0])

    def _delete(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False, if_gone: bool = False, if_id: bytes = b""
    ) -> tuple[int, int, int, bytes]:
        """Run the delete script; return whether it did, the ready messages, whether the queue was transient, its event log."""
        keys = self._keys.queue(name).delete
        conditions = (int(if_unused), int(if_empty), int(if_gone), if_id)
        reply: tuple[int, int, int, bytes] = self._commands.call(script("delete"), keys, *conditions)
        return reply


def _stored(value: Argument) -> bytes:
    """Return a field's value as the server has it."""
    return value if isinstance(value, bytes) else str(value).encode()
