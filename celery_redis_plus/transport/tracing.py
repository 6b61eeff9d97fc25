"""Spans of OpenTelemetry for what the transport does: a publish, a delivery, a settlement.

OpenTelemetry's instrumentation of Celery has the spans of `apply_async` and of the task. These stand between the two, and behind.
Nothing is wrapped until it is asked for. It needs the extra `tracing`.
Names and attributes: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.trace import SpanKind, Tracer, get_tracer
from wrapt import wrap_function_wrapper

from celery_redis_plus.transport.channel import Channel
from celery_redis_plus.transport.qos import QoS
from celery_redis_plus.version import __version__

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
            wrapped = getattr(getattr(owner, name), "__wrapped__", None)
            if wrapped is not None:
                setattr(owner, name, wrapped)


class _Spans:
    """The wrappers, as `wrapt` calls them."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def publish(self, wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the span of a publish; it is the parent of those of its message where nothing else is."""

        def named(message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any) -> tuple[dict[str, Any], str]:
            return message, exchange or routing_key

        message, destination = named(*args, **kwargs)
        if destination in UNTRACED:
            return wrapped(*args, **kwargs)
        headers = message["headers"]
        with self._span("send", destination, SpanKind.PRODUCER, {"messaging.message.id": headers.get("id")}):
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
        with self._span(operation, destination, kind, about, context=propagate.extract(headers)):
            yield

    @contextmanager
    def _span(self, operation: str, destination: str, kind: SpanKind, about: dict[str, Any], **options: Any) -> Iterator[None]:
        attributes = {
            "messaging.system": SYSTEM, "messaging.operation.name": operation, "messaging.destination.name": destination,
            **{name: value for name, value in about.items() if value is not None},
        }  # fmt: skip
        # An exception becomes the span's status.
        with self._tracer.start_as_current_span(f"{operation} {destination}", kind=kind, attributes=attributes, **options):
            yield
