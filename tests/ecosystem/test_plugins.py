"""Celery's plugins with a broker at `redisplus://`, each used as its own documentation shows (`plugins_app.py`)."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import msgpack
import pytest

from celery_redis_plus.events import decode
from tests.support.connection_kills import kill_connections
from tests.support.waiting import wait_until

APP = "tests.ecosystem.plugins_app"


@pytest.fixture
def places(server, broker_url, monkeypatch):
    """Environment of an app's processes, this one included."""
    monkeypatch.setenv("CRP_TEST_BROKER", broker_url)
    monkeypatch.setenv("CRP_TEST_REDIS", server.url(scheme="redis"))


@pytest.fixture
def plugins(places):
    """The app, in this process."""
    sys.modules.pop(APP, None)
    module = importlib.import_module(APP)
    yield module
    # A result unsubscribes when it is collected: now, while the server is there.
    gc.collect()
    module.app.close()


@pytest.fixture
def plugins_worker(places, start_worker):
    def start(**options):
        return start_worker(APP, **{"pool": "solo", "forked": False, "quiet": False, **options})

    return start


def test_celery_batches_takes_tasks_together(plugins, plugins_worker):
    pytest.importorskip("celery_batches", reason="celery-batches is not installed: tox -e ecosystem")
    results = [plugins.batched.delay(number) for number in range(7)]
    plugins_worker()
    assert sorted(result.get(timeout=30) for result in results) == [1, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("end", ["shutdown", "lost connection"])
def test_a_batch_that_runs_is_not_run_again(end, pool, plugins, plugins_worker, redis_client):
    pytest.importorskip("celery_batches", reason="celery-batches is not installed: tox -e ecosystem")
    for number in range(3):
        plugins.batched_late.delay(number)
    worker = plugins_worker(pool=pool)
    wait_until(lambda: redis_client.llen("batch:begun") == 1, 30, worker.tail)
    if end == "shutdown":
        worker.ask_to_stop()
        wait_until(lambda: "Warm shutdown" in worker.log(), 10, worker.tail)
        other = plugins_worker(pool=pool)
    else:
        kill_connections(redis_client)
        wait_until(lambda: worker.log().count("] celery-redis-plus ") == 2, 20, worker.tail)
        other = worker
    # It takes what is ready behind the batch; Celery 5.6 may hand it to the busy process after a lost connection.
    sign = plugins.tick.delay()
    wait_until(lambda: f"{sign.id}] received" in other.log(), 20, other.tail)
    redis_client.set("batch:go", 1)
    wait_until(lambda: redis_client.llen("batch:done") == 1 and not redis_client.keys("message:{celery}:*"), 20, worker.tail)
    assert redis_client.llen("batch:begun") == 1


def test_a_message_that_waits_for_its_batch_goes_back_once(plugins, plugins_worker, redis_client):
    pytest.importorskip("celery_batches", reason="celery-batches is not installed: tox -e ecosystem")
    for number in range(3):
        plugins.batched_late.delay(number)
    worker = plugins_worker(pool="gevent", concurrency=4)
    wait_until(lambda: redis_client.lrange("batch:begun", 0, -1) == [b"3"], 30, worker.tail)
    plugins.batched_late.delay("waits")
    wait_until(lambda: redis_client.zcard("messages_index:{celery}") == 4, 10, worker.tail)
    worker.ask_to_stop()
    # The timer that flushes a batch is a greenlet of the worker that stops, and comes first.
    other = plugins_worker(pool="gevent", concurrency=4)
    wait_until(lambda: redis_client.llen("batch:begun") == 2, 30, other.tail)
    redis_client.set("batch:go", 1)
    assert worker.wait() == 0
    wait_until(lambda: not redis_client.keys("message:{celery}:*"), 20, other.tail)
    assert redis_client.lrange("batch:begun", 0, -1) == [b"3", b"1"]


def test_a_batch_that_kills_its_process_ends_at_the_delivery_limit(plugins, plugins_worker, broker_url, redis_client):
    pytest.importorskip("celery_batches", reason="celery-batches is not installed: tox -e ecosystem")
    for number in range(3):
        plugins.batched_poison.delay(number)
    worker = plugins_worker(pool="prefork", env={"CRP_TEST_BROKER": f"{broker_url}?delivery_limit=2"})
    wait_until(lambda: redis_client.zcard("dead:{celery}") == 3, 30, worker.tail)
    assert redis_client.llen("batch:begun") == 2
    assert worker.running


def test_the_events_tell_of_a_batch_that_was_acked_and_killed_its_process(plugins, plugins_worker, broker_url, redis_client):
    pytest.importorskip("celery_batches", reason="celery-batches is not installed: tox -e ecosystem")
    worker = plugins_worker(pool="prefork", env={"CRP_TEST_BROKER": f"{broker_url}?event_log=true"})
    plugins.app.conf.broker_transport_options = {"event_log": True}
    for number in range(3):
        plugins.batched_early_poison.delay(number)

    def ends():
        values = [decode(fields[b"v"]) for _, fields in redis_client.xrange("events:{celery}")]
        return [(event.event, event.reason, (event.error or "").partition(":")[0]) for event in values[-6:]]

    early, failed = ("acked", "early", ""), ("failed", "failure", "WorkerLostError")
    wait_until(lambda: ends() == [early] * 3 + [failed] * 3, 30, worker.tail)


def test_celery_once_refuses_a_second_task_of_the_same_arguments(plugins, plugins_worker):
    celery_once = pytest.importorskip("celery_once", reason="celery-once is not installed: tox -e ecosystem")
    result = plugins.once.delay(number=1)
    with pytest.raises(celery_once.AlreadyQueued):
        plugins.once.delay(number=1)
    delayed = plugins.once.apply_async(kwargs={"number": 2}, countdown=1)
    with pytest.raises(celery_once.AlreadyQueued):
        plugins.once.delay(number=2)
    plugins_worker()
    assert (result.get(timeout=30), delayed.get(timeout=30)) == (1, 2)
    assert plugins.once.delay(number=1).get(timeout=30) == 1


def test_celery_singleton_gives_the_waiting_tasks_result(plugins, plugins_worker):
    pytest.importorskip("celery_singleton", reason="celery-singleton is not installed: tox -e ecosystem")
    first, second, other = plugins.single.delay(1), plugins.single.delay(1), plugins.single.delay(2)
    assert first.id == second.id != other.id
    plugins_worker()
    assert (first.get(timeout=30), other.get(timeout=30)) == (1, 2)
    assert plugins.single.delay(1).id != first.id


def test_redbeat_schedules_beside_our_broker(plugins, places, tmp_path):
    pytest.importorskip("redbeat", reason="celery-redbeat is not installed: tox -e ecosystem")
    sends_ticks(plugins.app, ["-m", "celery", "-A", APP, "beat", "-S", "redbeat.RedBeatScheduler", "--pidfile="], tmp_path)


def sends_ticks(app, arguments, tmp_path, **variables):
    """Run a beat until it has sent two tasks."""
    log_path = tmp_path / "beat.log"
    with log_path.open("wb") as log:
        beat = subprocess.Popen([sys.executable, *arguments], env={**os.environ, **variables}, stdout=log, stderr=log)

    def sent():
        assert beat.poll() is None, log_path.read_text()
        with app.connection() as connection:
            return connection.default_channel.queue_sizes("celery").ready

    try:
        wait_until(lambda: sent() >= 2, 60, log_path.read_text, interval_s=0.2)
    finally:
        beat.terminate()
        beat.wait(20)


def test_sentry_hears_of_a_failed_task(plugins, plugins_worker, redis_client):
    pytest.importorskip("sentry_sdk", reason="sentry-sdk is not installed: tox -e ecosystem")
    worker = plugins_worker(env={"CRP_TEST_SENTRY": "1"})
    result = plugins.fail.apply_async(countdown=0.5)
    with pytest.raises(ValueError, match="no luck"):
        result.get(timeout=30)
    wait_until(lambda: redis_client.llen("sentry"), 30, worker.tail)
    assert redis_client.lpop("sentry") == b"p.fail: no luck"


def test_django_celery_results_stores_results(places, tmp_path):
    pytest.importorskip("django_celery_results", reason="django-celery-results is not installed: tox -e ecosystem")
    env = {**os.environ, "CRP_TEST_DATABASE": str(tmp_path / "db.sqlite3")}
    command = [sys.executable, "-m", "tests.ecosystem.django_program"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (result.returncode, result.stdout.split()) == (0, ["SUCCESS", "3"]), result.stderr


def test_django_celery_beat_schedules(plugins, places, tmp_path):
    pytest.importorskip("django_celery_beat", reason="django-celery-beat is not installed: tox -e ecosystem")
    database = str(tmp_path / "db.sqlite3")
    sends_ticks(plugins.app, ["-m", "tests.ecosystem.django_beat_program"], tmp_path, CRP_TEST_DATABASE=database)


class Agent(BaseHTTPRequestHandler):
    """Datadog's agent, as far as a tracer needs one: it keeps the spans that it is sent."""

    spans: ClassVar[list[dict]] = []

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v0.4/traces":
            self.spans += [span for trace in msgpack.unpackb(body) for span in trace]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_PUT  # noqa: N815 - as http.server calls it

    def do_GET(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_ddtrace_joins_publisher_and_task(places):
    pytest.importorskip("ddtrace", reason="ddtrace is not installed: tox -e ecosystem")
    Agent.spans.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as agent:
        threading.Thread(target=agent.serve_forever, daemon=True).start()
        env = {
            **os.environ,
            "DD_TRACE_AGENT_URL": f"http://127.0.0.1:{agent.server_port}",
            "DD_TRACE_API_VERSION": "v0.4",
            "DD_CELERY_DISTRIBUTED_TRACING": "true",
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
        }
        command = [sys.executable, "-m", "tests.ecosystem.ddtrace_program"]
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
        agent.shutdown()
    assert result.returncode == 0, result.stderr
    spans = {span["name"]: span for span in Agent.spans}
    assert spans["celery.run"]["resource"] == "p.traced"
    assert spans["celery.run"]["parent_id"] == spans["celery.apply"]["span_id"]
    assert spans["celery.run"]["trace_id"] == spans["celery.apply"]["trace_id"]
