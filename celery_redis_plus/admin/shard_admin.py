"""Administration of a broker with several shards: each question goes to the shard of its queue, or to all of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redis_plus.admin.broker_admin import UNREADABLE, BrokerAdmin, BrokerRefusal
from celery_redis_plus.admin.definition_admin import Comparison
from celery_redis_plus.admin.definitions import Definitions
from celery_redis_plus.admin.diagnosis.finding import Finding
from celery_redis_plus.admin.policy_admin import policy_shown
from celery_redis_plus.admin.shard_check import ShardChecker
from celery_redis_plus.broker.dead_letters.store import replay_of
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.message_search import MessageSearch
from celery_redis_plus.connection.broker_at import ShardPlace, brokers_at
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.shard_layout import shard_of
from celery_redis_plus.errors import InvalidArgument, OptionError, QueueNotFound, ShardUnreachable
from celery_redis_plus.shards.by_queue import ByQueue, ShardMessages
from celery_redis_plus.shards.dead_letters import ShardMoves
from celery_redis_plus.shards.place import Place
from celery_redis_plus.shards.raising import PATIENCE_S, ShardsRaise

if TYPE_CHECKING:
    from celery_redis_plus.admin.removal import Removal
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord
    from celery_redis_plus.broker.dead_letters.store import DeadLetter, DeadLetters
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber
    from celery_redis_plus.broker.integrity.checker import Checker
    from celery_redis_plus.broker.queues.audit import Action, Audit, AuditEntry
    from celery_redis_plus.broker.queues.limiters import LimiterState
    from celery_redis_plus.broker.queues.listing import ListedMessage
    from celery_redis_plus.broker.queues.messages import Messages
    from celery_redis_plus.broker.queues.overview import QueueOverview
    from celery_redis_plus.broker.queues.policies import Policy
    from celery_redis_plus.migration.conversion import Priorities
    from celery_redis_plus.migration.migration import Migration

logger = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])


def admin_of_url(
    url: str, options: Mapping[str, Any] | None = None, *, prefix: str = "", shard: int | None = None
) -> BrokerAdmin:  # fmt: skip
    """Return a connection to the broker at `url`: to all of its shards, or to the one that `shard` or the URL names.

    Raises:
        OptionError: there is no such shard.
        InvalidAddress, redis.exceptions.RedisError: as `broker_at` and `CommandConnection.call`.
    """
    address, found = brokers_at(url, options, prefix=prefix, shard=shard)
    if found[0].options.shards == 1:
        return BrokerAdmin(url, {**(options or {}), "global_keyprefix": found[0].app_prefix})
    with ExitStack() as stack:
        shards: list[BrokerAdmin | UnreachableShard] = []
        for place in found:
            commands = CommandConnection(Connector(address, place.options), "operator", timeout=place.options.socket_timeout)
            stack.callback(commands.close)
            admin = BrokerAdmin.over(commands, commands.connector.options, commands.close)
            try:
                admin.check_mark()
            except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                if len(found) == 1:
                    raise
                shards.append(UnreachableShard(place, error))
            else:
                shards.append(admin)
        return _admin_of(shards, found, stack.pop_all().close)
    raise AssertionError


def admin_of_app(app: Any, *, shard: int | None = None) -> BrokerAdmin:
    """Return a connection to the broker of an app: to all of its shards, or to the one that `shard` numbers.

    Raises as `BrokerAdmin.of_app` does, and as `admin_of_url`.
    """
    from celery_redis_plus.integration.app_broker import reached_shards

    with ExitStack() as stack:
        found = stack.enter_context(reached_shards(app, shard))
        shards = [
            UnreachableShard(place, session)
            if isinstance(session, ShardUnreachable)
            else BrokerAdmin.over(session.commands, session.options, lambda: None)
            for place, session in found
        ]
        return _admin_of(shards, [place for place, _ in found], stack.pop_all().close)
    raise AssertionError


def raise_of_url(
    url: str, shards: int, options: Mapping[str, Any] | None = None, *, prefix: str = "", patience_s: float = PATIENCE_S
) -> ShardsRaise:  # fmt: skip
    """Return the raise to `shards` shards of the broker at `url`. Raises as `ShardsRaise`, and as `broker_at`."""
    address, places = brokers_at(url, options, prefix=prefix)
    return ShardsRaise(address, replace(places[0].options, global_keyprefix=places[0].app_prefix), shards, patience_s=patience_s)


def raise_of_app(app: Any, shards: int, *, patience_s: float = PATIENCE_S) -> ShardsRaise:
    """Return the same for the broker of an app. Raises OptionError where it is none of ours."""
    from celery_redis_plus.integration.app_broker import settings_of

    return ShardsRaise(*settings_of(app), shards, patience_s=patience_s)


def _admin_of(
    shards: Sequence[BrokerAdmin | UnreachableShard], places: Sequence[ShardPlace], close: Callable[[], None]
) -> BrokerAdmin:  # fmt: skip
    reached = [shard for shard in shards if isinstance(shard, BrokerAdmin)]
    if not reached:
        close()
        raise next(shard.error for shard in shards if isinstance(shard, UnreachableShard))
    for shard, place in zip(shards, places, strict=True):
        shard.place = place if place.options.shards > 1 else None
    if len(shards) > 1:
        return ShardAdmin(shards, close)
    reached[0].close = close
    return reached[0]


class UnreachableShard:
    """Stands for the administration of a shard that cannot be reached: everything that is asked of it raises."""

    place: ShardPlace | None

    def __init__(self, place: ShardPlace, error: Exception) -> None:
        """Keep why."""
        text = str(error) if isinstance(error, ShardUnreachable) else (
            f"shard {place.number} of {place.options.shards} is unreachable: {error}"
        )  # fmt: skip
        self.error = ShardUnreachable(text)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise ShardUnreachable."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error


def _by_queue(method: Method) -> Method:
    """Return a method whose first argument is a queue, for the shard of that queue."""

    @functools.wraps(method)
    def in_shard(self: ShardAdmin, queue: str, *args: Any, **kwargs: Any) -> Any:
        return method(self.shard_of(queue), queue, *args, **kwargs)

    return cast("Method", in_shard)


class ShardAdmin(BrokerAdmin):
    """A connection to each shard of a broker. What it does not do is refused, instead of done in one shard alone."""

    def __init__(self, shards: Sequence[BrokerAdmin | UnreachableShard], close: Callable[[], None]) -> None:
        """Administer over one of each shard; `close` closes the connections."""
        self._shards = cast("Sequence[BrokerAdmin]", shards)
        #: Those that answer: what is asked of all queues is asked of these.
        self._reached = [shard for shard in shards if isinstance(shard, BrokerAdmin)]
        for shard in shards:
            if isinstance(shard, UnreachableShard):
                logger.warning("%s; its queues are left out", shard.error)
        self.close = close
        self._failures = KeyFailures(logger, UNREADABLE)

        #: Who did what: written in the shard of its queue, else in the first one that answers.
        self.audit = cast("Audit", ShardAudit(self))
        #: Lists and deletes dead letters.
        self.dead_letters = cast("DeadLetters", ByQueue([_part(shard, "dead_letters") for shard in shards]))
        #: Finds messages by their id or task id, cancels and reschedules them.
        self.messages = MessageSearch(
            cast("Messages", ShardMessages([_part(shard, "queue_messages") for shard in shards])), self.queues,
            audit=self.audit,
        )  # fmt: skip

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what `BrokerAdmin` does over one connection."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise OptionError(f"this command is for one shard of the {len(self._shards)}; allowed is the number of one (--shard)")

    @property
    def reached(self) -> Sequence[BrokerAdmin]:
        """The shards that answer."""
        return self._reached

    def shard_of(self, queue: str) -> BrokerAdmin:
        """Return the shard of a queue, or of a fanout exchange."""
        return self._shards[shard_of(queue, len(self._shards))]

    @property
    def dead_letter_max(self) -> int:
        """How many dead letters a queue keeps, by the options that this connection has."""
        return self._reached[0].dead_letter_max

    overview_of = _by_queue(BrokerAdmin.overview_of)
    bindings = _by_queue(BrokerAdmin.bindings)
    purge = _by_queue(BrokerAdmin.purge)
    declare_queue = _by_queue(BrokerAdmin.declare_queue)
    delete_queue = _by_queue(BrokerAdmin.delete_queue)
    list_messages = _by_queue(BrokerAdmin.list_messages)
    waiting_tags = _by_queue(BrokerAdmin.waiting_tags)
    cancel = _by_queue(BrokerAdmin.cancel)
    give_back = _by_queue(BrokerAdmin.give_back)
    held_tags = _by_queue(BrokerAdmin.held_tags)
    holders = _by_queue(BrokerAdmin.holders)
    explain = _by_queue(BrokerAdmin.explain)
    stored = _by_queue(BrokerAdmin.stored)
    stored_small = _by_queue(BrokerAdmin.stored_small)
    consumers = _by_queue(BrokerAdmin.consumers)
    counters = _by_queue(BrokerAdmin.counters)
    pause = _by_queue(BrokerAdmin.pause)
    resume = _by_queue(BrokerAdmin.resume)
    paused = _by_queue(BrokerAdmin.paused)
    arguments = _by_queue(BrokerAdmin.arguments)
    groups = _by_queue(BrokerAdmin.groups)
    set_group = _by_queue(BrokerAdmin.set_group)
    some_groups = _by_queue(BrokerAdmin.some_groups)
    limiters_of = _by_queue(BrokerAdmin.limiters_of)
    check_queue = _by_queue(BrokerAdmin.check_queue)
    search_dead_letters = _by_queue(BrokerAdmin.search_dead_letters)

    def _listed(self) -> list[str]:
        """Return the names of the queues that the shards' servers list, sorted."""
        return sorted({queue for shard in self._reached for queue in shard.queues()})

    def overviews_of(self, queues: Sequence[str]) -> Iterator[QueueOverview]:
        """Yield how queues stand, without those that are gone."""
        found = {
            one.queue: one
            for shard in self._reached
            for one in shard.overviews_of([queue for queue in queues if self.shard_of(queue) is shard])
        }
        return (found[queue] for queue in queues if queue in found)

    def scheduled(self, *patterns: str, task: str | None = None) -> Iterator[ListedMessage]:
        """Yield the delayed messages of queues, the next due first."""
        queues = [one.queue for one in self.overview(*patterns) if one.delayed]
        yield from merge(*(self.list_messages(queue, "delayed", task) for queue in queues), key=attrgetter("time_ms"))

    def all_consumers(self, *patterns: str) -> list[ConsumerRecord]:
        """Return the live consumers of all queues, or of those that `patterns` name, by queue. Raises as `queues` does."""
        found: list[ConsumerRecord] = []
        for queue in self.queues(*patterns):
            # It may be gone by now.
            with suppress(QueueNotFound), self._failures.alone(queue):
                found += self.consumers(queue)
        return found

    def subscribers(self, *patterns: str) -> dict[str, list[Subscriber]]:
        """Return the subscribers of each fanout exchange, as `BrokerAdmin.subscribers`."""
        found = [(shard, shard.subscribers(*patterns)) for shard in self._reached]
        return {name: those for shard, named in found for name, those in named.items() if self.shard_of(name) is shard}

    # -- policies ---------------------------------------------------------------------------------------------------------

    def policies(self) -> list[Policy]:
        """Return the policies that apply now, by pattern: each stands in all shards."""
        found = {one.pattern: one for shard in self._shards for one in shard.policies()}
        return [found[pattern] for pattern in sorted(found)]

    def limiters(self) -> list[LimiterState]:
        """Return the limiters that were used: each shard has its own, which are added up."""
        found: dict[str, LimiterState] = {}
        for one in (limiter for shard in self._reached for limiter in shard.limiters()):
            other = found.get(one.limiter)
            found[one.limiter] = one if other is None else other.added_to(one)
        return sorted(found.values(), key=lambda one: (-one.waiting, -one.held_s, one.limiter))

    def hold_limiter(self, limiter: str, seconds: float) -> None:
        """Hold a limiter in each shard, as `BrokerAdmin.hold_limiter`."""
        for shard in self._shards:
            shard.hold_limiter(limiter, seconds)

    def set_limiter(self, limiter: str, rule: str | None) -> None:
        """Set a limiter's rule in each shard, as `BrokerAdmin.set_limiter`."""
        for shard in self._shards:
            shard.set_limiter(limiter, rule)

    def set_policy(
        self, pattern: str, arguments: Mapping[str, object], reason: str, *, priority: int = 0, for_s: float | None = None
    ) -> dict[str, str | None]:
        """Set a policy in each shard, as `BrokerAdmin.set_policy`. Raises ShardUnreachable before any, where one is away."""
        self.policies()
        with self.audit.action("set policy", in_steps=True, **policy_shown(pattern, arguments, reason, for_s)) as action:
            for shard in self._shards:
                # The leader of each shard completes what is on its list, should this process die.
                shard.list_policy(pattern, arguments, reason, priority=priority, for_s=for_s)
            found = self._merged(
                shard.set_policy(pattern, arguments, reason, priority=priority, for_s=for_s) for shard in self._shards
            )
            action.count = sum(refusal is None for refusal in found.values())
        return found

    def remove_policy(self, pattern: str) -> dict[str, str | None] | None:
        """Remove a policy from each shard, as `BrokerAdmin.remove_policy`. Raises as `set_policy`."""
        self.policies()
        with self.audit.action("remove policy", in_steps=True, pattern=pattern) as action:
            removed = [shard.unlist_policy(pattern) for shard in self._shards]
            merged = self._merged(shard.steer_without_policy(pattern) for shard in self._shards) if any(removed) else {}
            action.count = len(merged)
        return merged if any(removed) else None

    @staticmethod
    def _merged(found: Iterable[dict[str, str | None]]) -> dict[str, str | None]:
        return dict(sorted((queue, why) for one in found for queue, why in one.items()))

    # -- definitions ------------------------------------------------------------------------------------------------------

    def definitions(self) -> Definitions:
        """Return the definitions of all shards, as `BrokerAdmin.definitions`. Raises ShardUnreachable where one is away."""
        found = Definitions()
        for one in [shard.definitions() for shard in self._shards]:
            found.exchanges.update(one.exchanges)
            found.queues.update(one.queues)
            found.bindings.extend(bound for bound in one.bindings if bound not in found.bindings)
        found.policies.extend(self.policies())
        return found

    def compare_definitions(self, wanted: Definitions) -> Comparison:
        """Return what the shards lack, as `BrokerAdmin.compare_definitions`. Raises as `definitions`."""
        found = Comparison()
        for shard in self._shards:
            found.add(shard.compare_definitions(wanted.part(partial(self._is_home, shard))))
        found.present = len(wanted) - len(found.missing) - len(found.conflicts)
        return found

    def _is_home(self, shard: BrokerAdmin, queue: str) -> bool:
        return self.shard_of(queue) is shard

    def declare_definitions(self, missing: Definitions, progress: Callable[[int], object] = lambda _: None) -> list[str]:
        """Declare what is missing in the shards, as `BrokerAdmin.declare_definitions`. Raises as `definitions`, before any."""
        self.policies()
        refused: list[str] = []
        with self.audit.action("import definitions", in_steps=True) as action:
            for shard in self._shards:
                part = missing.part(partial(self._is_home, shard))
                refused += shard.declare_definitions(part, progress)
            action.count = len(missing)
        return refused

    # -- dead letters -----------------------------------------------------------------------------------------------------

    def replay_page(self, letters: Sequence[DeadLetter], to: str | None = None) -> list[bool | BrokerRefusal]:
        """Replay dead letters; return for each what `replay` returns or raises."""
        outcomes: list[bool | BrokerRefusal] = []
        for letter in letters:
            try:
                outcomes.append(self.replay(letter, to))
            except (InvalidArgument, QueueNotFound) as error:
                outcomes.append(error)
        return outcomes

    def replay(self, letter: DeadLetter, to: str | None = None) -> bool:
        """Put a dead letter back to work, as `BrokerAdmin.replay`, in queues of all shards."""
        targets = [to] if to is not None else self._routed(letter) if letter.queue == UNDELIVERED else [letter.queue]
        home = self.shard_of(letter.queue)
        if all(self.shard_of(target) is home for target in targets):
            return home.dead_letters.replay(letter, targets)
        move = replay_of(letter, targets)
        for target in targets:
            self.check_queue(target)
        source = home.keys.queue(letter.queue).dead
        moves = ShardMoves(
            home.dead_letters, home.commands, self._shards.index(home), len(self._shards),
            lambda number: Place(number, self._shards[number].commands, self._shards[number].options),
        )  # fmt: skip
        return moves.move(move, source, "replayed") > 0

    def _routed(self, letter: DeadLetter) -> list[str]:
        """Return where a message that no queue took is routed to now. Raises as `BrokerAdmin.replay` does."""
        found: list[str] = []
        refusal: QueueNotFound | None = None
        for shard in self._shards:
            try:
                found += shard.routed(letter)
            except QueueNotFound as error:
                refusal = error
        if not found and refusal is not None:
            raise refusal
        return list(dict.fromkeys(found))

    # -- the whole broker -------------------------------------------------------------------------------------------------

    def migration(
        self, kombu_options: Mapping[str, Any], priorities: Priorities | None = None, *, source: str | None = None,
        source_prefix: str | None = None,
    ) -> Migration:  # fmt: skip
        """Return the migration between kombu's own Redis transport and all shards, as `BrokerAdmin.migration`."""
        from celery_redis_plus.admin.shard_migration import ShardsMigration

        return cast(
            "Migration",
            ShardsMigration(
                [shard.migration(kombu_options, priorities, source=source, source_prefix=source_prefix) for shard in self._shards]
            ),
        )

    def checker(self, *, repair: bool = False, batch: int = 100) -> Checker:
        """Return what holds the shards against their invariants, one after the other."""
        checkers = [shard.checker(repair=repair, batch=batch) for shard in self._shards]
        places = [Place(number, shard.commands, shard.options) for number, shard in enumerate(self._shards)]
        return cast("Checker", ShardChecker(checkers, places))

    def removals(self) -> list[Removal]:
        """Return what removes all that each shard has stored. Raises ShardUnreachable where one is away."""
        return [removal for shard in self._shards for removal in shard.removals()]

    def examine(
        self, checks: Sequence[str] = (), roles: Sequence[str] = (), *, kombu_options: Mapping[str, Any] | None = None
    ) -> Iterator[Finding]:
        """Yield what is wrong with the shards' servers and queues, or soon will be; the text begins with the shard's number."""
        for number, shard in enumerate(self._shards):
            if isinstance(shard, UnreachableShard):
                yield Finding("server", "danger", str(shard.error), shard.error.remedy)
                continue
            for finding in shard.examine(checks, roles, kombu_options=kombu_options):
                yield replace(finding, text=f"shard {number}: {finding.text}")


class ShardAudit:
    """Has the methods of an `Audit`, for all shards."""

    def __init__(self, admin: ShardAdmin) -> None:
        """Write where `admin` finds the shard of a queue."""
        self._admin = admin

    def action(self, name: str, queue: str | None = None, **options: Any) -> AbstractContextManager[Action]:
        """Note what is done meanwhile, as `Audit.action`."""
        home = self._admin.reached[0] if queue is None else self._admin.shard_of(queue)
        return home.audit.action(name, queue, **options)

    def entries(self) -> Iterator[AuditEntry]:
        """Yield the actions in all shards, the last one first."""
        return merge(*(shard.audit.entries() for shard in self._admin.reached), key=attrgetter("at_ms"), reverse=True)


def _part(shard: BrokerAdmin | UnreachableShard, name: str) -> Any:
    return getattr(shard, name) if isinstance(shard, BrokerAdmin) else shard
