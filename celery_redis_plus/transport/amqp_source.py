"""Reads the queues of an AMQP broker, such as RabbitMQ, through kombu: where a migration takes its messages from."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import kombu
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from celery_redis_plus.errors import InvalidAddress, ServerUnreachable
from celery_redis_plus.transport.stored_json import dump

if TYPE_CHECKING:
    from types import TracebackType

#: Properties of AMQP 0-9-1 that stand elsewhere in kombu's messages.
_ELSEWHERE = frozenset(("application_headers", "content_type", "content_encoding"))
_NOT_FOUND = "404"
#: Seconds after which a broker that says nothing is given up.
SILENT_S = 20


@dataclass(frozen=True, slots=True)
class AmqpMessage:
    """A message that the AMQP broker has delivered; it delivers it again unless it is acked."""

    #: As kombu's virtual transports store it: JSON, the body in base64.
    text: bytes
    _message: Any

    def ack(self) -> None:
        """Have the AMQP broker remove it. Raises ServerUnreachable."""
        with _named_errors(self._message.channel.connection.client):
            self._message.ack()


class AmqpSource:
    """The queues of one AMQP broker. Messages that are not acked return to their queues when this is closed."""

    def __init__(self, url: str) -> None:
        """Connect to `url` when it is first used. Raises InvalidAddress where kombu cannot read it."""
        timeouts = {"read_timeout": SILENT_S, "write_timeout": SILENT_S}
        try:
            self._connection = kombu.Connection(url, transport_options=timeouts)
        except TypeError as error:
            raise InvalidAddress(f"{maybe_sanitize_url(url)}: kombu's amqp has no such option in its URL: {error}") from error
        self._channel: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.release()

    def waiting(self, queue: str) -> int | None:
        """Return how many messages wait in a queue; None where there is no such queue. Raises ServerUnreachable."""
        with _named_errors(self._connection):
            self._connect()
            # Of its own: a broker that has no such queue closes the channel, and takes back what was delivered over it.
            channel = self._connection.channel()
            try:
                waiting = int(channel.queue_declare(queue, passive=True).message_count)
            except self._connection.channel_errors as error:
                if str(getattr(error, "reply_code", None)) == _NOT_FOUND:
                    return None
                raise
            channel.close()
            return waiting

    def get(self, queue: str) -> AmqpMessage | None:
        """Return the first message of a queue, None where it has none. Raises ServerUnreachable."""
        with _named_errors(self._connection):
            # It makes a message of kombu's of py-amqp's.
            message = kombu.Queue(queue)(self._open()).get()
            return None if message is None else AmqpMessage(_text_of(message), message)

    def give_back(self) -> None:
        """Return the messages that were not acked to their queues; the next `get` opens a channel anew."""
        channel, self._channel = self._channel, None
        if channel is not None:
            # Where its connection is lost, the broker has them back already.
            with suppress(OSError, *self._connection.connection_errors, *self._connection.channel_errors):
                channel.close()

    def _connect(self) -> None:
        # Tried once: an operator waits for the answer.
        self._connection.ensure_connection(max_retries=1)

    def _open(self) -> Any:
        if self._channel is None:
            self._connect()
            self._channel = self._connection.channel()
            # py-amqp would decode bodies by their content encoding.
            self._channel.auto_decode = False
        return self._channel


def _text_of(message: Any) -> bytes:
    body = message.body
    properties = {name: value for name, value in message.properties.items() if name not in _ELSEWHERE}
    info = message.delivery_info
    properties["delivery_info"] = {name: info[name] for name in ("exchange", "routing_key")}
    properties["body_encoding"] = "base64"
    raw = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass")
    return dump(
        {
            "body": base64.b64encode(raw).decode("ascii"),
            "content-type": message.content_type,
            "content-encoding": message.content_encoding,
            "headers": message.headers,
            "properties": properties,
        }
    )


@contextmanager
def _named_errors(connection: Any) -> Iterator[None]:
    """Raise ServerUnreachable for what the AMQP client raises."""
    try:
        yield
    except (OperationalError, *connection.connection_errors, *connection.channel_errors) as error:
        raise ServerUnreachable(f"the AMQP broker at {connection.as_uri()}: {type(error).__name__}: {error}") from error
