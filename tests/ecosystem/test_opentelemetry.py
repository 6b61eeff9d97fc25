"""The trace of a task, by Celery's own instrumentation: its context is in the headers of its message, and stays there."""

from __future__ import annotations

import importlib
import sys

import pytest
from kombu.common import Broadcast

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.dead_letters.search import DeadLetterFilter
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

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = CeleryInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield Spans(exporter)
    instrumentor.uninstrument()


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
