"""The trace of a task: its context is in the headers of its message, and stays there; and our spans between those of Celery."""

from __future__ import annotations

import importlib
import sys

import pytest
from kombu import Connection
from kombu.common import Broadcast

from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
from celery_redis_plus.cli.broker_admin import BrokerAdmin
from tests.support.inbox import Inbox, publish
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


def test_without_the_instrumentor_nothing_is_wrapped():
    from celery_redis_plus.transport.channel import Channel
    from celery_redis_plus.transport.qos import QoS

    assert not any(hasattr(method, "__wrapped__") for method in (Channel.basic_publish, QoS.deliver, QoS.settle))
