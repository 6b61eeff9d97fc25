"""What an operator asks of a broker, and tells it: the Python side of the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from redis.exceptions import NoPermissionError

from celery_redis_plus.admin.audited_dead_letters import AuditedDeadLetters
from celery_redis_plus.admin.dead_letter_admin import BrokerRefusal, DeadLetterAdmin
from celery_redis_plus.admin.definition_admin import DefinitionAdmin
from celery_redis_plus.admin.diagnosis.checks import examine
from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker
from celery_redis_plus.admin.group_admin import GroupAdmin
from celery_redis_plus.admin.limiter_admin import LimiterAdmin
from celery_redis_plus.admin.message_admin import MessageAdmin
from celery_redis_plus.admin.policy_admin import PolicyAdmin
from celery_redis_plus.admin.removal import Removal
from celery_redis_plus.broker.arguments.names import is_meant, is_pattern
from celery_redis_plus.broker.consumers.pauses import Pause, Pausing
from celery_redis_plus.broker.consumers.registry import ConsumerRecord, Consumers
from celery_redis_plus.broker.exchanges.bindings import Bindings
from celery_redis_plus.broker.exchanges.declared_topology import DeclaredTopology
from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber, SubscriberRegistry
from celery_redis_plus.broker.integrity import CHECKED_A_CALL, Checker
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.audit import Audit, current_actor
from celery_redis_plus.broker.queues.counters import Counters, read_counters
from celery_redis_plus.broker.queues.message_search import MessageSearch
from celery_redis_plus.broker.queues.messages import Messages
from celery_redis_plus.broker.queues.overview import (
    QueueOverview,
    is_internal,
    list_queues,
    read_overview,
    read_overviews,
)
from celery_redis_plus.broker.queues.policies import PolicyList
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.broker_at import ShardPlace, broker_at, prefix_at
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import QueueNotFound
from celery_redis_plus.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redis_plus.admin.diagnosis.finding import Finding
    from celery_redis_plus.broker.exchanges.routing import Binding
    from celery_redis_plus.migration.conversion import Priorities
    from celery_redis_plus.migration.migration import Migration
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: What is logged of a queue, or an exchange, among others.
UNREADABLE: Final = "cannot be read"

__all__ = ["UNREADABLE", "BrokerAdmin", "BrokerRefusal"]


class BrokerAdmin(DeadLetterAdmin, DefinitionAdmin, GroupAdmin, LimiterAdmin, MessageAdmin, PolicyAdmin):
    """One connection to a broker, for looking and steering; use it as a context manager.

    `patterns` are names, or patterns such as `shop.*`; without any, all are meant. Methods raise QueueNotFound for a queue that
    is not there. All raise as `CommandConnection.call` does.

    Args:
        url: the broker's URL, as Celery has it.
        options: the app's `broker_transport_options`; `global_keyprefix` above all must be the same.

    Raises:
        InvalidAddress, OptionError: the URL or an option cannot be used; or the broker has several shards, which
            `celery_redis_plus.admin.shard_admin.admin_of_url` administers.

    Example:
        with BrokerAdmin("redis://localhost:6379/0") as admin:
            for consumer in admin.consumers("celery"):
                print(consumer.host, consumer.pid, consumer.state, consumer.held)
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        address, parsed = broker_at(url, options)
        commands = CommandConnection(Connector(address, parsed), "operator", timeout=parsed.socket_timeout)
        self._use(commands, commands.connector.options, commands.close)
        self.check_mark()

    def check_mark(self) -> None:
        """See that this version knows the broker's data, and that its options say the right number of shards.

        Raises as `declared_topology.check_mark` does: only a part of the queues would be seen.
        """
        try:
            mark = self._commands.command("GET", self._keys.database_id)
            DeclaredTopology(self._options.shards).check_mark(mark)
        except NoPermissionError as error:
            logger.debug("GET is refused: %s", error)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_app(cls, app: Any) -> Self:
        """Connect as the Celery app `app` does: with its URLs, TLS, credentials and transport options.

        Raises:
            OptionError: the app's broker is none of ours.
            redis.exceptions.RedisError: as `error_translation.translate` names it.
        """
        from celery_redis_plus.integration.app_broker import connected

        stack = ExitStack()
        session = stack.enter_context(connected(app))
        return cls.over(session.commands, session.options, stack.close)

    @classmethod
    def over(cls, commands: CommandConnection, options: Options, close: Callable[[], None]) -> Self:
        """Use a connection to one broker, which `close` closes."""
        admin = cls.__new__(cls)
        admin._use(commands, options, close)  # noqa: SLF001 - of this class
        return admin

    def _use(self, commands: CommandConnection, options: Options, close: Callable[[], None]) -> None:
        self._options = options
        self._keys = Keys(options.global_keyprefix)
        self._commands = commands
        #: Close the connection.
        self.close = close
        known = DeclaredTopology(options.shards)
        self._queues = Queues(commands, self._keys, transient_ttl_s=options.transient_queue_ttl, topology=known)
        #: Lists, replays and deletes dead letters.
        self.dead_letters = AuditedDeadLetters(commands, self._keys)
        #: The messages of one queue.
        self.queue_messages = Messages(
            commands, self._keys, dead_letter_max=options.dead_letter_max, priority_order=options.priority_order or "high-first"
        )
        #: Finds messages by their id or task id, and cancels, moves and reschedules them.
        self.messages = MessageSearch(self.queue_messages, self.queues, audit=Audit(commands, self._keys))
        self._bindings = Bindings(commands, self._keys, known, self._fanout_keys)
        self._pausing = Pausing(commands, self._keys)
        self._policies = PolicyList(commands, self._keys)
        #: Who did what, also by other programs.
        self.audit = Audit(commands, self._keys)
        self._consumers = Consumers(commands, self._keys)
        self._failures = KeyFailures(logger, UNREADABLE)
        self._exchange_failures = KeyFailures(logger, UNREADABLE, kind="exchange")

    #: Which of several shards it is; None: there is one broker.
    place: ShardPlace | None = None

    @property
    def commands(self) -> CommandConnection:
        """The connection."""
        return self._commands

    @property
    def options(self) -> Options:
        """The transport options."""
        return self._options

    @property
    def keys(self) -> Keys:
        """Spells the broker's keys."""
        return self._keys

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- queues -----------------------------------------------------------------------------------------------------------

    def queues(self, *patterns: str, internal: bool = True) -> list[str]:
        """Return the names of queues, sorted.

        Without `internal` those are left out that Celery has for itself, unless they are named (`overview.is_internal`).

        Raises:
            QueueNotFound: there is no queue of a name that is no pattern.
        """
        found = [name for name in self._listed() if _is_named(name, patterns)]
        if not internal:
            found = [name for name in found if name in patterns or not is_internal(name)]
        for name in patterns:
            if name not in found and not is_pattern(name):
                self.check_queue(name)
                found.append(name)
        return found

    def _listed(self) -> list[str]:
        """Return the names of the queues that the server lists, sorted."""
        return list_queues(self._commands, self._keys)

    def overview(self, *patterns: str, internal: bool = True) -> list[QueueOverview]:
        """Return the state of queues, with or without internal ones. Raises as `queues` does.

        A queue whose keys cannot be read is left out, and logged; where it is named itself, what it raises goes up.
        """
        names = self.queues(*patterns, internal=internal)
        found = {one.queue: one for one in self.overviews_of(names)}
        for name in set(names).intersection(patterns).difference(found):
            found[name] = self.overview_of(name)
        return [found[name] for name in names if name in found]

    def overview_of(self, queue: str) -> QueueOverview:
        """Return the state of one queue."""
        return read_overview(self._commands, self._keys, queue)

    def overviews_of(self, queues: Sequence[str]) -> Iterator[QueueOverview]:
        """Yield how queues stand, each when it is needed, without those that are gone, or cannot be read, which is logged."""
        return read_overviews(self._commands, self._keys, queues, self._failures)

    def bindings(self, queue: str) -> list[tuple[str, Binding]]:
        """Return the bindings of a queue, each with its exchange. The default exchange, which reaches every queue, has none."""
        self.check_queue(queue)
        return self._bindings.of_queue(queue)

    def purge(self, queue: str, progress: Callable[[int], object] = lambda _: None) -> int:
        """Remove all waiting messages, ready and delayed, for good; return how many. Memory is freed in short steps.

        `progress` is called with the number of messages that each step freed.
        """
        self.check_queue(queue)
        with self.audit.action("purge", queue, in_steps=True) as action:
            action.count = self._queues.purge(queue, progress)
        return action.count

    # -- consumers and flow -----------------------------------------------------------------------------------------------

    def consumers(self, queue: str) -> list[ConsumerRecord]:
        """Return the live consumers of `queue`, the longest there first."""
        self.check_queue(queue)
        return self._consumers.list(queue)

    def all_consumers(self, *patterns: str) -> list[ConsumerRecord]:
        """Return the live consumers of queues, by queue. Raises as `overview` does."""
        found: list[ConsumerRecord] = []
        for queue in self.queues(*patterns):
            with nullcontext() if queue in patterns else self._failures.alone(queue):
                found += self._consumers.list(queue)
        return found

    def subscribers(self, *patterns: str) -> dict[str, list[Subscriber]]:
        """Return the subscribers of fanout exchanges, those that lag most first.

        Raises as `list_queues` does.
        """
        registry = SubscriberRegistry(
            self._commands, timeout_s=self._options.subscriber_timeout, max_age_s=self._options.stream_max_age
        )
        names = [name for name in sorted(self._bindings.of_type("fanout")) if _is_named(name, patterns)]
        found = {}
        for name in names:
            with nullcontext() if name in patterns else self._exchange_failures.alone(name):
                found[name] = registry.subscribers(self._fanout_keys(name))
        return found

    def counters(self, queue: str) -> Counters:
        """Return the counters of a queue, and how many messages it has."""
        return read_counters(self._commands, self._keys, queue)

    def all_counters(self, *patterns: str) -> dict[str, Counters]:
        """Return the counters of queues. Raises as `overview` does."""
        names = self.queues(*patterns)
        found = self.counters_of([name for name in names if name not in patterns])
        return {
            name: found[name] if name in found else self.counters(name) for name in names if name in found or name in patterns
        }

    def counters_of(self, queues: Iterable[str]) -> dict[str, Counters]:
        """Return the counters of queues, without those that are gone, or cannot be read, which is logged."""
        found = {}
        for queue in queues:
            with suppress(QueueNotFound), self._failures.alone(queue):
                found[queue] = self.counters(queue)
        return found

    def pause(self, queue: str, reason: str, for_s: float | None = None) -> None:
        """Pause the consumers of `queue`, for `for_s` seconds or until it is resumed; publishing goes on.

        Raises:
            InvalidArgument: no reason is given, or `for_s` is not above 0, or over a hundred years.
            QueueNotFound: there is no such queue.
        """
        with self.audit.action("pause", queue, reason=reason, for_s=for_s) as action:
            self._pausing.pause(queue, reason, for_s, by=current_actor().name)
            action.count = 1

    def resume(self, queue: str) -> bool:
        """Let the consumers of `queue` go on; return whether it was paused."""
        self.check_queue(queue)
        with self.audit.action("resume", queue) as action:
            was_paused = self._pausing.resume(queue)
            action.count = int(was_paused)
        return was_paused

    def paused(self, queue: str) -> Pause | None:
        """Return why and since when `queue` is paused; None: it is not."""
        self.check_queue(queue)
        return self._pausing.paused(queue)

    def migration(
        self, kombu_options: Mapping[str, Any], priorities: Priorities | None = None, *, source: str | None = None,
        source_prefix: str | None = None,
    ) -> Migration:  # fmt: skip
        """Return the migration from and to kombu's own Redis transport, a context manager; see `Migration`.

        kombu's data is in this database, or at the URL `source`, which may have its `global_keyprefix`.

        Raises:
            InvalidAddress, OptionError: the URL cannot be used.
        """
        from celery_redis_plus.migration.migration import Migration, source_connection

        options, place = self._options, self.place
        elsewhere = None if source is None else source_connection(source, options.socket_timeout)
        there = source_prefix if source is None else prefix_at(source, source_prefix)
        if there is None and place is not None:
            # kombu's keys have the app's own prefix.
            there = place.app_prefix
        migration = Migration(
            self._commands, self._keys, self._queues, options, kombu_options=kombu_options, priorities=priorities,
            source=elsewhere, source_prefix=there,
        )  # fmt: skip
        if place is not None:
            migration.owns = place.owns
        return migration

    def checker(self, *, repair: bool = False, batch: int = CHECKED_A_CALL) -> Checker:
        """Return a checker of the broker's data, which repairs it with `repair`; see `Checker`."""
        low_first = self._options.priority_order == "low-first"
        return Checker(self._commands, self._keys, self._queues, repair=repair, batch=batch, low_first=low_first)

    def removals(self) -> list[Removal]:
        """Return the removal of all stored data, one for each shard; see `Removal`."""
        return [Removal(self._commands, self._keys)]

    def examine(
        self, checks: Sequence[str] = (), roles: Sequence[str] = (), *, kombu_options: Mapping[str, Any] | None = None
    ) -> Iterator[Finding]:
        """Yield the findings of `doctor` on server and queues; see `diagnosis.checks.examine`.

        Args:
            checks: names of checks; all without any.
            roles: roles of the access rules that the user must be able to play.
            kombu_options: the app's `broker_transport_options`, of which kombu's `sep` and `priority_steps` are read.
        """
        broker = ExaminedBroker(self._commands, self._keys, self._options, roles, kombu_options=kombu_options)
        yield from examine(broker, checks)


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(is_meant(name, one) for one in patterns)
