"""The trace of a task: its context is in the headers of its message, and stays there; and our spans between those of Celery."""

from __future__ import annotations

import importlib
import sys

import pytest
from kombu import Connection, Queue
from kombu.common import Broadcast

from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
from celery_redis_plus.cli.broker_admin import BrokerAdmin
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

pytest.importorskip("opentelemetry.instrumentation.celery", reason="OpenTelemetry is not installed: tox -e ecosystem")

APP = "tests.ecosystem.plugins_app"


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter):
        self._exporter = exporter

    def of(self, name):
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def all(self):
        return self._exporter.get_finished_spans()

    def wait_for(self, name, count):
        wait_until(lambda: len(self.of(name)) >= count, 30, lambda: [span.name for span in self._exporter.get_finished_spans()])
        return self.of(name)


@pytest.fixture
def app(server, broker_url, monkeypatch):
    monkeypatch.setenv("CRP_TEST_BROKER", broker_url)
    monkeypatch.setenv("CRP_TEST_REDIS", server.url(scheme="redis"))
    sys.modules.pop(APP, None)
    app = importlib.import_module(APP).app
    yield app
    app.close()


@pytest.fixture
def spans():
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from celery_redis_plus.transport.tracing import RedisPlusInstrumentor

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentors = (CeleryInstrumentor(), RedisPlusInstrumentor())
    for one in instrumentors:
        one.instrument(tracer_provider=provider)
    yield Spans(exporter)
    for one in instrumentors:
        one.uninstrument()


@pytest.fixture
def worker(app, spans):
    """Give a context manager: a worker in this process, of these queues."""
    from celery.contrib.testing.worker import start_worker

    return lambda **options: start_worker(app, pool="solo", perform_ping_check=False, **options)


def is_child(span, parent):
    return (span.parent.span_id, span.context.trace_id) == (parent.context.span_id, parent.context.trace_id)


def test_a_delayed_task_is_a_child_of_its_publish(app, spans, worker):
    with worker():
        app.send_task("p.tick", countdown=0.5)
        (run,) = spans.wait_for("run/p.tick", 1)
    assert is_child(run, *spans.of("apply_async/p.tick"))


def test_each_try_of_a_task_is_in_the_trace_of_its_first_publish(app, spans, worker):
    @app.task(name="p.again", bind=True, max_retries=1, shared=False)
    def again(task):
        if not task.request.retries:
            raise task.retry(countdown=0.2)

    with worker():
        again.delay()
        first, second = spans.wait_for("run/p.again", 2)
    published, retried = spans.of("apply_async/p.again")
    assert is_child(first, published)
    assert is_child(retried, first)
    assert is_child(second, retried)


def test_a_replayed_dead_letter_runs_in_the_trace_of_its_publish(app, spans, worker, broker_url):
    from celery.exceptions import Reject

    refused = []

    @app.task(name="p.refuse", acks_late=True, shared=False)
    def refuse():
        if not refused:
            refused.append(True)
            raise Reject("not today", requeue=False)

    with worker(), BrokerAdmin(broker_url) as admin:
        refuse.delay()
        wait_until(lambda: admin.overview_of("celery").dead == 1)
        for _, letters in admin.search_dead_letters("celery", DeadLetterFilter()).pages():
            admin.replay_page(letters)
        runs = spans.wait_for("run/p.refuse", 2)
    (published,) = spans.of("apply_async/p.refuse")
    assert [is_child(run, published) for run in runs] == [True, True]


def test_a_broadcast_is_the_parent_of_each_workers_run(app, spans, worker):
    app.conf.task_queues = [Broadcast("news")]
    with worker(queues=["news"]):
        app.send_task("p.tick", queue="news")
        (run,) = spans.wait_for("run/p.tick", 1)
    assert is_child(run, *spans.of("apply_async/p.tick"))


def test_a_task_has_spans_of_its_publish_delivery_and_settlement(app, spans, worker):
    @app.task(name="p.late", acks_late=True, shared=False)
    def late():
        pass

    with worker():
        late.apply_async(countdown=0.2)
        (settled,) = spans.wait_for("settle celery", 1)
    (published,), (sent,), (received,) = (spans.of(name) for name in ("apply_async/p.late", "send celery", "receive celery"))
    assert is_child(sent, published)
    assert is_child(received, published)
    assert is_child(settled, published)
    assert settled.attributes["messaging.redisplus.settlement"] == "ack"
    assert sent.end_time <= received.start_time <= settled.start_time
    # Nothing of what workers tell each other.
    assert not [span.name for span in spans.all() if "pidbox" in span.name or "celeryev" in span.name]


def test_plain_kombu_is_traced_and_a_requeue_is_in_the_same_trace(spans, broker_url):
    with Connection(broker_url) as connection:
        inbox = Inbox(connection.channel(), "letters", ack=False)
        publish(connection.channel(), "letters", "hello")
        inbox.drain(1)
        inbox.messages[0].requeue()
        inbox.drain(2)
        inbox.messages[1].reject()
    (sent,), received, settled = (spans.of(f"{name} letters") for name in ("send", "receive", "settle"))
    assert [is_child(span, sent) for span in (*received, *settled)] == [True] * 4
    assert [span.attributes["messaging.redisplus.redelivered"] for span in received] == [False, True]
    assert [span.attributes["messaging.redisplus.settlement"] for span in settled] == ["requeue", "reject"]


def test_a_publish_that_fails_is_an_error_of_its_span(spans, broker_url):
    from kombu.exceptions import ChannelError

    with Connection(broker_url) as connection, pytest.raises(ChannelError):
        publish(connection.channel(), "nowhere", "x", exchange="no-such-exchange", mandatory=True)
    (sent,) = spans.of("send no-such-exchange")
    assert sent.status.status_code.name == "ERROR"


UNREADABLE = [
    {"traceparent": 5}, {"traceparent": None, "tracestate": ["a", 5]}, {"traceparent": {"a": 1}}, {"traceparent": [["a"]]},
    {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": 5}, {"baggage": {"a": 1}}, {"baggage": 5},
    {"traceparent": "x" * 100_000, "tracestate": "a=b," * 10_000, "baggage": "a=b," * 10_000},
    {"traceparent": "00-漢", "tracestate": "é=\x00", "baggage": "漢=%ff,;;=,"}, {"traceparent": "00-\ud800"},
]  # fmt: skip


@pytest.mark.parametrize("headers", UNREADABLE)
def test_a_message_whose_context_cannot_be_read_is_delivered_and_settled(headers, spans, broker_url):
    with Connection(broker_url) as connection:
        channel = connection.channel()
        inbox = Inbox(channel, "letters", ack=False)
        publish(channel, "letters", "bad", headers=headers)
        publish(channel, "letters", "good")
        inbox.drain(2)
        for message in inbox.messages:
            message.ack()
        publish(channel, "letters", "got", headers=headers)
        channel.close()
        message = connection.channel().basic_get("letters")
        message.ack()
        assert inbox.bodies == ["bad", "good"]
        assert message.payload == "got"
    assert [len(spans.of(f"{name} letters")) for name in ("send", "receive", "settle")] == [3, 3, 3]


def test_a_worker_goes_on_behind_a_task_whose_context_cannot_be_read(app, spans, worker):
    from opentelemetry.instrumentation.celery import CeleryInstrumentor

    # It writes a context of its own into the headers.
    CeleryInstrumentor().uninstrument()
    with worker():
        for _ in range(2):
            app.send_task("p.tick", headers={"traceparent": 5})
        app.send_task("p.tick")
        received = spans.wait_for("receive celery", 3)
        spans.wait_for("settle celery", 3)
    assert [span.parent is None for span in received] == [True, True, False]


def test_a_context_that_cannot_be_read_is_one_warning(spans, broker_url, caplog):
    caplog.set_level("DEBUG", "celery_redis_plus.transport.tracing")
    with Connection(broker_url) as connection:
        publish(connection.channel(), "letters", "a", "b", headers={"traceparent": 5})
        inbox = Inbox(connection.channel(), "letters", ack=False)
        inbox.drain(2)
    told = [record for record in caplog.records if record.name == "celery_redis_plus.transport.tracing"]
    assert [record.levelname for record in told] == ["WARNING", "DEBUG"]
    assert "OpenTelemetry failed; the message goes on without a span, or without its parent: TypeError(" in told[0].getMessage()


@pytest.mark.parametrize("hook", ["on_start", "on_end"])
def test_what_a_span_processor_raises_ends_no_work(hook, broker_url, monkeypatch):
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from celery_redis_plus.transport.tracing import RedisPlusInstrumentor

    def fail(*_):
        raise LookupError(hook)

    provider, processor = TracerProvider(), SpanProcessor()
    monkeypatch.setattr(processor, hook, fail)
    provider.add_span_processor(processor)
    instrumentor = RedisPlusInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        with Connection(broker_url) as connection:
            inbox = Inbox(connection.channel(), "letters")
            publish(connection.channel(), "letters", "hello")
            inbox.drain(1)
            assert inbox.bodies == ["hello"]
    finally:
        instrumentor.uninstrument()


def test_a_consumer_that_settles_nothing_has_spans_of_its_deliveries(spans, broker_url):
    with Connection(broker_url) as connection:
        inbox = Inbox(connection.channel(), "letters", no_ack=True)
        publish(connection.channel(), "letters", "hello")
        inbox.drain(1)
    (sent,), (received,) = (spans.of(f"{name} letters") for name in ("send", "receive"))
    assert is_child(received, sent)
    assert not spans.of("settle letters")


def test_a_copy_for_a_browsing_consumer_has_no_span(spans, broker_url):
    browsing = Queue("letters", consumer_arguments={"x-browse": True})
    with Connection(broker_url) as connection:
        declare(connection.channel(), "letters")
        for no_ack in (False, True):
            inbox = Inbox(connection.channel(), browsing, ack=False, no_ack=no_ack)
            publish(connection.channel(), "letters", "hello")
            inbox.drain(1)
    assert not spans.of("receive letters")


def test_without_the_instrumentor_nothing_is_wrapped():
    from celery_redis_plus.transport.channel import Channel
    from celery_redis_plus.transport.qos import QoS

    assert not any(hasattr(method, "__wrapped__") for method in (Channel.basic_publish, QoS.deliver, QoS.settle))
