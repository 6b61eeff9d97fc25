"""Spans of OpenTelemetry for what the transport does: a publish, a delivery, a settlement.

OpenTelemetry's instrumentation of Celery has the spans of `apply_async` and of the task. These stand between the two, and behind.
Nothing is wrapped until it is asked for. It needs the extra `tracing`.
Names and attributes: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.instrumentation.utils import unwrap
from opentelemetry.trace import SpanKind, Tracer, get_tracer
from wrapt import wrap_function_wrapper

from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.qos import QoS
from celery_redis_plus.version import __version__

logger = logging.getLogger(__name__)

#: Exchanges of Celery's own messages: remote control, its replies, events. They have no spans.
UNTRACED: Final = frozenset(("celery.pidbox", "reply.celery.pidbox", "celeryev"))
SYSTEM: Final = "redisplus"


class RedisPlusInstrumentor(BaseInstrumentor):
    """Makes spans for all channels of this process from `instrument()` on; `opentelemetry-instrument` calls it by itself.

    A message that is published without a trace context in its headers gets that of its publish, so plain kombu is traced, too.

    Example:
        RedisPlusInstrumentor().instrument()
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what it instruments."""
        return ("kombu >= 5.6",)

    def _instrument(self, **kwargs: Any) -> None:
        spans = _Spans(get_tracer(__name__, __version__, kwargs.get("tracer_provider")))
        wrap_function_wrapper(Channel, "basic_publish", spans.publish)
        wrap_function_wrapper(QoS, "deliver", spans.deliver)
        wrap_function_wrapper(QoS, "settle", spans.settle)

    def _uninstrument(self, **_: Any) -> None:
        for owner, name in ((Channel, "basic_publish"), (QoS, "deliver"), (QoS, "settle")):
            unwrap(owner, name)


class _Spans:
    """The wrappers, as `wrapt` calls them. What fails in OpenTelemetry never ends the work that it should describe."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._warned = False

    def publish(self, wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the span of a publish; it is the parent of those of its message where nothing else is."""

        def named(message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any) -> tuple[dict[str, Any], str]:
            return message, exchange or routing_key

        message, destination = named(*args, **kwargs)
        if destination in UNTRACED:
            return wrapped(*args, **kwargs)
        headers = message["headers"]
        with self._span("send", destination, SpanKind.PRODUCER, {"messaging.message.id": headers.get("id")}):
            with self._harmless():
                if not any(field in headers for field in propagate.get_global_textmap().fields):
                    propagate.inject(headers)
            return wrapped(*args, **kwargs)

    def deliver(self, wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the span of a delivery: it tells when a consumer got the message, and whether it was the first one."""
        message = args[0]
        with self._of_message("receive", message, SpanKind.CONSUMER):
            return wrapped(*args, **kwargs)

    def settle(self, wrapped: Callable[..., Any], qos: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the span of a settlement: ack, reject or requeue."""
        tag, settlement = args
        try:
            message = qos.get(tag)
        except KeyError:
            # Settled already, or dropped by the application.
            return wrapped(*args, **kwargs)
        with self._of_message("settle", message, SpanKind.CLIENT, {"messaging.redisplus.settlement": settlement.value}):
            return wrapped(*args, **kwargs)

    @contextmanager
    def _of_message(self, operation: str, message: Any, kind: SpanKind, more: dict[str, Any] | None = None) -> Iterator[None]:
        info = message.delivery_info or {}
        destination = getattr(message, "queue", None) or info.get("routing_key") or ""
        headers = message.headers or {}
        if info.get("exchange") in UNTRACED:
            yield
            return
        about = {
            "messaging.message.id": headers.get("id") or message.delivery_tag,
            "messaging.redisplus.redelivered": bool(info.get("redelivered")),
            **(more or {}),
        }
        # A message whose context cannot be read has no parent, also where some other span is open here.
        parent = Context()
        with self._harmless():
            parent = propagate.extract(headers)
        with self._span(operation, destination, kind, about, context=parent):
            yield

    @contextmanager
    def _span(self, operation: str, destination: str, kind: SpanKind, about: dict[str, Any], **options: Any) -> Iterator[None]:
        """Have a span around the block; where OpenTelemetry fails, the block runs without."""
        attributes = {
            "messaging.system": SYSTEM, "messaging.operation.name": operation, "messaging.destination.name": destination,
            **{name: value for name, value in about.items() if value is not None},
        }  # fmt: skip
        span: AbstractContextManager[Any] | None = None
        with self._harmless():
            begun = self._tracer.start_as_current_span(f"{operation} {destination}", kind=kind, attributes=attributes, **options)
            begun.__enter__()
            span = begun
        try:
            yield
        except BaseException as error:
            # It becomes the span's status.
            self._end(span, error)
            raise
        self._end(span, None)

    def _end(self, span: AbstractContextManager[Any] | None, error: BaseException | None) -> None:
        with self._harmless():
            if span is not None:
                span.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Log what OpenTelemetry raises in the block, the first time as a warning, and go on behind it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of any propagator, sampler, span processor
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            logger.log(level, "OpenTelemetry failed; the message goes on without a span, or without its parent: %r", error)
