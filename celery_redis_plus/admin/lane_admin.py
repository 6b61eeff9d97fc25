"""Administration of a broker with several lanes: each question goes to the lane of its queue, or to all of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from celery_redis_plus.admin.broker_admin import UNREADABLE, BrokerAdmin, BrokerRefusal
from celery_redis_plus.broker.dead_letters.store import replay_of
from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.integrity import Account
from celery_redis_plus.broker.lanes.by_queue import ByQueue, LaneMessages
from celery_redis_plus.broker.lanes.dead_letter_moves import LaneMoves
from celery_redis_plus.broker.lanes.lanes import Lanes
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.message_search import MessageSearch
from celery_redis_plus.connection.broker_at import broker_at
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.connection.lanes import lane_of, lane_prefixes, only_one_lane
from celery_redis_plus.errors import InvalidArgument, OptionError, QueueNotFound

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.finding import Finding
    from celery_redis_plus.broker.consumers.registry import ConsumerRecord
    from celery_redis_plus.broker.dead_letters.store import DeadLetter, DeadLetters
    from celery_redis_plus.broker.fanout.subscriber_registry import Subscriber
    from celery_redis_plus.broker.integrity import Violation
    from celery_redis_plus.broker.integrity.checker import Checker
    from celery_redis_plus.broker.queues.listing import ListedMessage
    from celery_redis_plus.broker.queues.messages import Messages
    from celery_redis_plus.broker.queues.overview import QueueOverview

logger = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])


def admin_of_url(url: str, options: Mapping[str, Any] | None = None, *, prefix: str = "") -> BrokerAdmin:
    """Return a connection to the broker at `url`, with as many lanes as options or URL name. Raises as `broker_at`."""
    address, parsed = broker_at(url, options, prefix=prefix)
    if parsed.cluster_lanes == 1:
        return BrokerAdmin(url, {**(options or {}), "global_keyprefix": parsed.global_keyprefix})
    with ExitStack() as stack:
        lanes = []
        for lane in lane_prefixes(parsed.global_keyprefix, parsed.cluster_lanes):
            connector = Connector(address, replace(parsed, global_keyprefix=lane))
            commands = CommandConnection(connector, "operator", timeout=parsed.socket_timeout)
            stack.callback(commands.close)
            lanes.append(BrokerAdmin.over(commands, connector.options, commands.close))
            lanes[-1].check_mark()
        return LaneAdmin(lanes, stack.pop_all().close)
    raise AssertionError


def admin_of_app(app: Any) -> BrokerAdmin:
    """Return a connection to the broker of an app, with as many lanes as it has. Raises as `BrokerAdmin.of_app` does."""
    from celery_redis_plus.integration.app_broker import connected_lanes

    with ExitStack() as stack:
        sessions = stack.enter_context(connected_lanes(app))
        lanes = [BrokerAdmin.over(session.commands, session.options, lambda: None) for session in sessions]
        close = stack.pop_all().close
        if len(lanes) > 1:
            return LaneAdmin(lanes, close)
        lanes[0].close = close
        return lanes[0]
    raise AssertionError


def _by_queue(method: Method) -> Method:
    """Return a method whose first argument is a queue, for the lane of that queue."""

    @functools.wraps(method)
    def in_lane(self: LaneAdmin, queue: str, *args: Any, **kwargs: Any) -> Any:
        return method(self.lane_of(queue), queue, *args, **kwargs)

    return cast("Method", in_lane)


class LaneAdmin(BrokerAdmin):
    """A connection to each lane of a broker. What it does not do is refused, instead of done in one lane alone."""

    def __init__(self, lanes: Sequence[BrokerAdmin], close: Callable[[], None]) -> None:
        """Administer over one of each lane; `close` closes the connections."""
        self._lanes = lanes
        self.close = close
        self._failures = KeyFailures(logger, UNREADABLE)

        #: Lists and deletes dead letters.
        self.dead_letters = cast("DeadLetters", ByQueue([lane.dead_letters for lane in lanes]))
        #: Finds messages by their id or task id, cancels and reschedules them.
        self.messages = MessageSearch(cast("Messages", LaneMessages([lane.queue_messages for lane in lanes])), self.queues)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what `BrokerAdmin` does over one connection."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise OptionError(only_one_lane("this command", len(self._lanes)))

    def lane_of(self, queue: str) -> BrokerAdmin:
        """Return the lane of a queue, or of a fanout exchange."""
        return self._lanes[lane_of(queue, len(self._lanes))]

    overview_of = _by_queue(BrokerAdmin.overview_of)
    purge = _by_queue(BrokerAdmin.purge)
    list_messages = _by_queue(BrokerAdmin.list_messages)
    waiting_tags = _by_queue(BrokerAdmin.waiting_tags)
    cancel = _by_queue(BrokerAdmin.cancel)
    stored = _by_queue(BrokerAdmin.stored)
    stored_small = _by_queue(BrokerAdmin.stored_small)
    consumers = _by_queue(BrokerAdmin.consumers)
    counters = _by_queue(BrokerAdmin.counters)
    pause = _by_queue(BrokerAdmin.pause)
    resume = _by_queue(BrokerAdmin.resume)
    paused = _by_queue(BrokerAdmin.paused)
    check_queue = _by_queue(BrokerAdmin.check_queue)
    search_dead_letters = _by_queue(BrokerAdmin.search_dead_letters)

    def _listed(self) -> list[str]:
        """Return the names of the queues that the lanes' servers list, sorted."""
        return sorted(queue for lane in self._lanes for queue in lane.queues())

    def overviews_of(self, queues: Sequence[str]) -> Iterator[QueueOverview]:
        """Yield how queues stand, without those that are gone."""
        found = {
            one.queue: one
            for lane in self._lanes
            for one in lane.overviews_of([queue for queue in queues if self.lane_of(queue) is lane])
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
        found = [(lane, lane.subscribers(*patterns)) for lane in self._lanes]
        return {name: those for lane, named in found for name, those in named.items() if self.lane_of(name) is lane}

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
        """Put a dead letter back to work, as `BrokerAdmin.replay`, in queues of all lanes."""
        targets = [to] if to is not None else self._routed(letter) if letter.queue == UNDELIVERED else [letter.queue]
        home = self.lane_of(letter.queue)
        if all(self.lane_of(target) is home for target in targets):
            return home.dead_letters.replay(letter, targets)
        move = replay_of(letter, targets)
        for target in targets:
            self.check_queue(target)
        source = home.lane.keys.queue(letter.queue).dead
        lanes = Lanes(home.lane, self._lanes.index(home), len(self._lanes), lambda number: self._lanes[number].lane)
        return LaneMoves(home.dead_letters, lanes).move(move, source, "replayed") > 0

    def _routed(self, letter: DeadLetter) -> list[str]:
        """Return where a message that no queue took is routed to now. Raises as `BrokerAdmin.replay` does."""
        found: list[str] = []
        refusal: QueueNotFound | None = None
        for lane in self._lanes:
            try:
                found += lane.routed(letter)
            except QueueNotFound as error:
                refusal = error
        if not found and refusal is not None:
            raise refusal
        return list(dict.fromkeys(found))

    # -- the whole broker -------------------------------------------------------------------------------------------------

    def checker(self, *, repair: bool = False, batch: int = 100) -> Checker:
        """Return what holds the lanes against their invariants, one after the other."""
        return cast("Checker", LaneChecker([lane.checker(repair=repair, batch=batch) for lane in self._lanes]))

    def examine(
        self, checks: Sequence[str] = (), roles: Sequence[str] = (), *, kombu_options: Mapping[str, Any] | None = None
    ) -> Iterator[Finding]:
        """Yield what is wrong with the lanes' servers and queues, or soon will be; the text begins with the lane's number."""
        for number, lane in enumerate(self._lanes):
            for finding in lane.examine(checks, roles, kombu_options=kombu_options):
                yield replace(finding, text=f"lane {number}: {finding.text}")


class LaneChecker:
    """Has the methods of a `Checker`, for all lanes."""

    def __init__(self, checkers: Sequence[Checker]) -> None:
        """Use one of each lane."""
        self._checkers = checkers

    def run(self, queue: str | None = None) -> Iterator[Violation]:
        """Yield every violation once. Raises as `Checker.run` does."""
        if queue is not None:
            self._checkers = [self._checkers[lane_of(queue, len(self._checkers))]]
        for checker in self._checkers:
            yield from checker.run(queue)

    @property
    def account(self) -> Account:
        """What was seen so far."""
        accounts = [checker.account for checker in self._checkers]
        return Account(**{one.name: sum(getattr(account, one.name) for account in accounts) for one in fields(Account)})
