"""kombu's publish batches (`Producer.batch`, kombu 5.7): messages that share a round trip, and a script call for each queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.utils.functional import retry_over_time

from celery_redis_plus.broker.publishing.attempt import PublishAttempt
from celery_redis_plus.broker.publishing.publish_batch import BatchedMessage, BatchPublisher
from celery_redis_plus.errors import PublishRefused, PublishTimedOut
from celery_redis_plus.transport import compat
from celery_redis_plus.transport.amqp_errors import CONNECTION_ERRORS

if TYPE_CHECKING:
    from celery_redis_plus.stored_message import Outgoing
    from celery_redis_plus.transport.publishing import ExchangePublisher

#: How often a lost connection is opened anew for what it left in doubt: as often as Celery retries a publish by default.
RECONNECTS = 3
#: Seconds before the first of these, and by how many each later one comes later.
RECONNECT_INTERVAL_S = 0.2

#: Called with a message, as kombu has it, that is published, and the id of the one that stands for it already, or None.
OnConfirmed = Callable[[dict[str, Any], str | None], None]


@dataclass(slots=True, eq=False)
class _Waiting(BatchedMessage):
    """A message that waits for `flush`, and as kombu gave it: the caller may have changed its dicts since then."""

    given: dict[str, Any]
    mandatory: bool


class PublishBatch:
    """The messages that one producer publishes in one batch. kombu calls its methods, from one thread."""

    def __init__(
        self, channel: Any, max_size: int, *, publisher: ExchangePublisher, on_confirmed: OnConfirmed | None = None
    ) -> None:  # fmt: skip
        """Collect messages for `flush`.

        Args:
            channel: kombu asks for it; messages that no batch takes are published on it.
            max_size: so many messages at most wait for `flush`.
            publisher: prepares its messages, and publishes those by themselves that have to be.
            on_confirmed: called with each message, and with the id of the one that stands for it already, or None; the others
                are published again: once a queue has refused one, those behind it are not tried, so that their order stays.
                Without it, who publishes a deduplicated message is told at once: such a message does not wait.
        """
        self.channel = channel
        self._max_size = max_size
        session = channel.session
        window_s = session.options.publish_dedup_window
        self._batches = BatchPublisher(session.commands, session.keys, session.publisher, dedup_window_s=window_s)
        self._publisher = publisher
        self._on_confirmed = on_confirmed
        self._waiting: list[_Waiting] = []
        self._over = False
        #: Publishes what has to be there before a message that is published by itself.
        self.flush_before: Callable[[], None] = self.flush

    def publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        """Take a message for the batch, or publish it now, behind those that wait: to an exchange that has a name, for instance.

        Raises as `Channel.basic_publish` does, and as `flush`.
        """
        if self._over:
            raise RuntimeError("the publish batch was closed, or discarded")
        self.channel.check_open()
        outgoing = None
        if not exchange and not kwargs.get("immediate"):
            outgoing = self._publisher.prepare_for_batch(message, routing_key)
        if outgoing is None or not self._takes(outgoing):
            self.flush_before()
            duplicate_of = self.channel.basic_publish(message, exchange=exchange, routing_key=routing_key, **kwargs)
            if self._on_confirmed is not None:
                self._on_confirmed(message, duplicate_of)
            return duplicate_of
        mandatory = bool(kwargs.get("mandatory"))
        self._waiting.append(_Waiting(routing_key, outgoing, PublishAttempt(), message, mandatory))
        if len(self._waiting) >= self._max_size:
            self.flush()
        return None

    def _takes(self, outgoing: Outgoing) -> bool:
        told_at_once = outgoing.deduplication is not None and self._on_confirmed is None
        return not told_at_once and self._batches.takes(outgoing)

    def _tell(self, one: _Waiting) -> None:
        if self._on_confirmed is not None:
            self._on_confirmed(one.given, one.attempt.duplicate_of)

    def flush(self) -> None:
        """Publish what waits, and return when the server has confirmed it.

        Messages to queues with limits, or to queues that have to be declared again, are published by themselves, as
        `Channel.basic_publish` does. So are all after a lost connection: those that the server has are not stored again. If a
        queue that blocks stays full for `publish_timeout`, the rest of its messages are not published.

        Raises:
            kombu.exceptions.BatchPublishError: some of the messages are not published; its cause is the first error.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        left, failure = self._batches.to_queues(waiting)
        for one in waiting:
            if one.attempt.done:
                self._tell(one)
        unpublished = 0
        stuck: set[str] = set()
        for place, one in enumerate(left):
            if one.queue in stuck:
                unpublished += 1
                continue
            try:
                retry_over_time(
                    self._publisher.publish_prepared,
                    CONNECTION_ERRORS,
                    args=(one.given, one.message, one.queue, one.attempt),
                    kwargs={"mandatory": one.mandatory},
                    max_retries=RECONNECTS,
                    interval_start=RECONNECT_INTERVAL_S,
                    interval_step=RECONNECT_INTERVAL_S,
                )
                self._tell(one)
            except CONNECTION_ERRORS as error:
                failure, unpublished = error, unpublished + len(left) - place
                break
            except Exception as error:  # noqa: BLE001 - each message has an outcome of its own
                # The others would wait as long, one after the other; or overtake this one.
                if isinstance(error, PublishTimedOut if self._on_confirmed is None else PublishRefused):
                    stuck.add(one.queue)
                failure = error if not unpublished else failure
                unpublished += 1
        if unpublished:
            raise compat.batch_publish_error(
                f"{unpublished} of {len(waiting)} messages of the batch are not published, or it is not known whether they are: "
                f"{failure}"
            ) from failure

    def discard(self) -> None:
        """Forget what waits: the block that published it ended by an exception."""
        self._over = True
        self._waiting.clear()

    def close(self) -> None:
        """End the batch."""
        self._over = True
