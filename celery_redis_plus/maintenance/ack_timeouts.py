"""Waits for the answers to tracked deliveries, and sees to the recipients that do not answer in time.

All awaited deliveries of this process share one thread and two connections, which exist while something is awaited. What
is awaited no more, because its publisher has died, any process that consumes resolves (`AbandonedDeliveries`).
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from celery_redis_plus import clock
from celery_redis_plus.broker.dead_letters.unroutable import ACK_TIMEOUT, UnroutableMessages
from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.delivery_store import GONE, REJECTED, TIMED_OUT, DeliveryStore, Tracked
from celery_redis_plus.broker.publishing.publisher import Publisher
from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.queues import Queues
from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.connection.poll import wait_readable
from celery_redis_plus.connection.waker import Waker
from celery_redis_plus.error_translation import concerns_keys
from celery_redis_plus.errors import CeleryRedisPlusError, InvalidArgument, WrongKeyType
from celery_redis_plus.maintenance.maintenance_task import MaintenanceTask, Slice

if TYPE_CHECKING:
    from celery_redis_plus.connection.connector import Connector
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: Seconds for which the read of the answers blocks; a dead connection is noticed within them.
ANSWER_BLOCK_S = 10.0
#: Seconds until a failed connection is opened again.
RECONNECT_DELAY_S = 0.5
#: Seconds between two checks for deliveries whose publisher has died.
ABANDONED_CHECK_S = 30.0
#: What became of a message whose recipient was too late, by what `DeliveryStore.kill` found.
OUTCOMES = {"died": TIMED_OUT, "dead": REJECTED, "gone": GONE}

#: Called with the delivery once it is resolved; None: it is not known any more.
Resolved = Callable[[Tracked | None], None]


class OverdueDeliveries:
    """Puts the messages of recipients that were too late among the dead letters."""

    def __init__(self, commands: CommandConnection, keys: Keys, options: Options) -> None:
        """Work over `commands`."""
        self.tracks = DeliveryStore(commands, keys)
        self._name = secrets.token_hex(6)
        self._keep = options.dead_letter_max
        queues = Queues(commands, keys, transient_ttl_s=options.transient_queue_ttl)
        publisher = Publisher(commands, keys, dedup_window_s=options.publish_dedup_window, on_missing=queues.revive)
        self._unroutable = UnroutableMessages(publisher, keep=options.dead_letter_max)
        self._failures = KeyFailures(logger, "has a message that was answered too late and cannot be made a dead letter")

    def resolve(self, track: str) -> float | None:
        """End the wait for those who are too late; return in how many seconds to look again, None: it is resolved.

        None as well where its record cannot be read: that is logged. Raises as `CommandConnection.call` does.
        """
        try:
            return self._resolve(track)
        except (ResponseError, InvalidArgument) as error:
            give_up(track, error)
            return None

    def _resolve(self, track: str) -> float | None:
        overdue = self.tracks.overdue(track, self._name)
        if overdue is None or isinstance(overdue, float):
            return overdue
        for recipient, tag in overdue.recipients.items():
            outcome = TIMED_OUT
            with self._failures.alone(recipient):
                if overdue.about.broadcast:
                    self._unroutable.keep_for(recipient, overdue.payload, PublishAttempt(), ACK_TIMEOUT)
                elif tag:
                    outcome = OUTCOMES[self.tracks.kill(recipient, tag, ACK_TIMEOUT, self._keep)]
            self.tracks.report(track, recipient, outcome, wait=True)
            logger.warning(
                "delivery %s: %r gave no answer in time (ack_timeout); it counts as nacked: %s", track, recipient, outcome,
                extra={"queue": recipient, "tag": tag},
            )  # fmt: skip
        return None


def give_up(track: str, error: Exception) -> None:
    """Log that a delivery is looked after no more; raise the error where it is not about what its keys hold."""
    if not concerns_keys(error):
        raise error
    logger.error("delivery %s cannot be read, and nothing more will be known of it: %s", track, error)


class AbandonedDeliveries(MaintenanceTask):
    """The leader's task that sees to deliveries whose publisher has died."""

    def __init__(self, overdue: OverdueDeliveries) -> None:
        """Let `overdue` see to them."""
        self._overdue = overdue
        self._due_at = clock.now_s() + random.uniform(1, ABANDONED_CHECK_S)  # noqa: S311 - spreads load, guards nothing

    def run(self) -> None:
        """Look for some. Raises as `CommandConnection.call` does."""
        self._due_at = clock.now_s() + ABANDONED_CHECK_S
        tracks = self._overdue.tracks
        slice_ = Slice()
        for track in tracks.forgotten():
            if slice_.over:
                self._due_at = 0.0
                return
            if self._overdue.resolve(track) is None:
                tracks.end(track)


@dataclass(slots=True)
class _Awaited:
    """A delivery that somebody waits for."""

    callbacks: list[Resolved]
    #: When to ask who is too late, on `clock`.
    ask_at: float = 0.0
    #: Id of the last answer that was read.
    last: bytes = b"0-0"


class AckTimeouts:
    """What this process waits for."""

    def __init__(self, connector: Connector, keys: Keys, options: Options) -> None:
        """Prepare; the first `watch` starts the thread."""
        self._keys = keys
        self._commands = CommandConnection(connector, "deliveries", timeout=options.socket_timeout)
        self._answers = BlockingConnection(connector, "answers", timeout=options.socket_timeout)
        self._overdue = OverdueDeliveries(self._commands, keys, options)
        #: Made with the thread: most processes never track anything.
        self._waker: Waker | None = None
        self._lock = lock_of(self)
        self._awaited: dict[str, _Awaited] = {}
        self._thread: threading.Thread | None = None
        self._streams: tuple[str, ...] = ()
        self._stopping = False

    def watch(self, track: str, callback: Resolved) -> None:
        """Call `callback`, from another thread, when the delivery is resolved; at once if it is already."""
        with self._lock:
            self._awaited.setdefault(track, _Awaited([])).callbacks.append(callback)
            if self._waker is None:
                self._waker = Waker()
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="celery-redis-plus-deliveries", daemon=True)
                self._thread.start()
            self._waker.wake()

    def stop(self) -> None:
        """End the thread; nothing is called back any more."""
        with self._lock:
            thread, self._stopping = self._thread, True
            if self._waker is not None:
                self._waker.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        with self._lock:
            self._stopping = False
            if self._waker is not None and self._thread is None:
                self._waker.close()
                self._waker = None

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            while not self._stopping:
                with self._lock:
                    if not self._awaited:
                        self._thread = None
                        return
                try:
                    self._resolve_overdue()
                    self._rest()
                except (RedisError, OSError, CeleryRedisPlusError) as error:
                    logger.debug("deliveries: the broker is unreachable (%s); trying again", error)
                    self._drop()
                    time.sleep(RECONNECT_DELAY_S)
        except Exception:
            logger.exception("the wait for deliveries failed; this is a defect of celery-redis-plus, please report it")
        finally:
            self._drop()
            self._commands.close()
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _drop(self) -> None:
        self._streams = ()
        self._answers.abort()

    def _resolve_overdue(self) -> None:
        """Look at each delivery whose time has come, or that is new; call back for those that are resolved."""
        now = clock.now_s()
        for track, awaited in list(self._awaited.items()):
            if awaited.ask_at > now:
                continue
            wait_s = self._overdue.resolve(track)
            if wait_s is None:
                self._end(track)
            else:
                awaited.ask_at = clock.now_s() + wait_s

    def _end(self, track: str) -> None:
        """Call back for a delivery that is resolved, or of which nothing more will be known."""
        state = None
        try:
            state = self._overdue.tracks.state(track)
        except (ResponseError, InvalidArgument) as error:
            give_up(track, error)
        self._overdue.tracks.end(track)
        with self._lock:
            awaited = self._awaited.pop(track)
        self._call_back(awaited, state)

    @staticmethod
    def _call_back(awaited: _Awaited, state: Tracked | None) -> None:
        for callback in awaited.callbacks:
            try:
                callback(state)
            except Exception:
                logger.exception("a callback of a tracked delivery failed")

    def _rest(self) -> None:
        """Wait for an answer, for somebody's time to be over, or for news from another thread."""
        tracks = tuple(self._awaited)
        if not tracks or self._waker is None:
            return
        if tracks != self._streams:
            # XREAD takes nothing away: the connection may go with it.
            if self._streams:
                self._answers.abort()
            streams = [self._keys.track(track)[1] for track in tracks]
            ids = [self._awaited[track].last for track in tracks]
            self._answers.start("XREAD", "BLOCK", int(ANSWER_BLOCK_S * 1000), "STREAMS", *streams, *ids)
            self._streams = tracks
        due_s = min((awaited.ask_at for awaited in list(self._awaited.values())), default=0.0) - clock.now_s()
        readable = wait_readable([self._waker.fileno(), self._answers.fileno()], max(due_s, 0.0))
        self._waker.clear()
        if self._answers.fileno() in readable:
            self._streams = ()
            self._take(tracks)

    def _take(self, tracks: Sequence[str]) -> None:
        by_stream = {self._keys.track(track)[1]: self._awaited[track] for track in tracks}
        try:
            answers = self._answers.finish() or ()
        except WrongKeyType as error:
            self._end_unreadable(tracks, error)
            return
        for stream, entries in answers:
            awaited = by_stream[bytes(stream)]
            awaited.last = entries[-1][0]
            if any(b"resolved" in fields for _, fields in entries):
                awaited.ask_at = 0.0

    def _end_unreadable(self, tracks: Sequence[str], error: WrongKeyType) -> None:
        """End the wait for deliveries whose answers are a key of another type: no answers are read while they are waited for."""
        types = self._commands.pipeline([("TYPE", self._keys.track(track)[1]) for track in tracks])
        for track, type_ in zip(tracks, types, strict=True):
            if type_ not in (b"stream", b"none"):
                give_up(track, error)
                self._end(track)
