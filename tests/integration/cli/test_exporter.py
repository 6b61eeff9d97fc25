"""`celery-redis-plus exporter`: scraped as Prometheus does it."""

from __future__ import annotations

import re
import signal
import socket
import sys
from contextlib import contextmanager
from threading import Barrier, Thread
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.cli.metric_descriptions import GAUGES, PREFIX, QUEUE_COUNTERS
from celery_redis_plus.cli.metrics import BrokerCollector
from celery_redis_plus.integration import worker_metrics
from tests.support.inbox import Inbox, declare, publish
from tests.support.program import forked


@contextmanager
def exporter(*arguments):
    """Run the command; gives the URL that it prints."""
    with forked("celery_redis_plus", "exporter", "--port", "0", *arguments) as process:
        try:
            yield re.search(r"http://\S+", process.stderr.readline())[0]
        finally:
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
        assert (process.wait(20), said) == (0, "")


def samples_of(text):
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(url):
    with urlopen(url, timeout=20) as reply:
        return samples_of(reply.read().decode())


def test_scrapes_that_come_together_share_their_reads(broker_url, channel, redis_client):
    queues, scrapes = 20, 30
    for number in range(queues):
        declare(channel, f"q{number}")
    together, answers = Barrier(scrapes), []

    def scrape_once():
        together.wait()
        answers.append(list(collector.collect()))

    collector = BrokerCollector(lambda: BrokerAdmin(broker_url))
    list(collector.collect())
    redis_client.config_resetstat()
    threads = [Thread(target=scrape_once) for _ in range(scrapes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collector.close()
    assert len(answers) == scrapes
    # Two round trips a queue; some threads come while others read already.
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] < scrapes / 3 * 2 * queues


def test_a_scrape_tells_what_is_in_the_queues_and_what_has_happened(broker_url, channel, connect, cli):
    inbox = Inbox(connect().channel(), "q", ack=False, prefetch=3)
    publish(channel, "q", "dies", "held", "done")
    inbox.drain(3)
    inbox.messages[0].reject()
    inbox.messages[2].ack()
    inbox.consumer.qos(prefetch_count=1)
    publish(channel, "q", "waits")
    publish(channel, "q", "later", headers={"x-delay": 3_600_000})
    declare(channel, "idle")
    cli("pause", "idle", "--reason", "tests")
    inbox.channel.connection.client.release()

    with exporter("--broker", broker_url) as url:
        found = scrape(url)

    assert found[("up",)] == 1
    assert found[("scrape_seconds",)] > 0
    states = {state: found[("queue_messages", "q", state)] for state in ("delayed", "dead")}
    assert states == {"delayed": 1, "dead": 1}
    assert found[("queue_messages", "q", "ready")] + found[("queue_messages", "q", "unacked")] == 2
    assert 0 <= found[("queue_oldest_ready_seconds", "q")] < 60
    assert (found[("queue_paused", "q")], found[("queue_paused", "idle")]) == (0, 1)
    counted = {name: found[(f"queue_{name}_total", "q")] for name in ("published", "delivered", "acked", "dead_lettered")}
    assert counted == {"published": 5, "delivered": 3, "acked": 1, "dead_lettered": 1}
    absent = {"fanout_subscribers", "fanout_max_lag_messages", "queue_full_ratio", "limiter_waiting_messages", "limiter_held"}
    names = {f"{name}_total" for name in QUEUE_COUNTERS} | set(GAUGES) - absent
    assert {name for name, *_ in found} == names


def test_a_request_that_does_not_end_is_given_up_without_a_word(monkeypatch, capsys):
    monkeypatch.setattr(worker_metrics, "REQUEST_S", 0.2)
    server = worker_metrics.MetricsServer("127.0.0.1", 0, worker_metrics.WorkerCollector())
    try:
        address = urlsplit(server.address)
        with socket.create_connection((address.hostname, address.port), timeout=30) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            assert client.recv(100) == b""
        with urlopen(server.address, timeout=20) as reply:
            assert b"celery_redis_plus_worker_" in reply.read()
    finally:
        server.stop()
    assert capsys.readouterr().err == ""


def test_queues_are_chosen_by_pattern(broker_url, channel):
    declare(channel, "shop.mail", "other")
    collector = BrokerCollector(lambda: BrokerAdmin(broker_url), ["shop.*"])
    registry = CollectorRegistry()
    registry.register(collector)
    found = samples_of(generate_latest(registry).decode())
    collector.close()
    assert ("queue_consumers", "shop.mail") in found
    assert ("queue_consumers", "other") not in found


def test_queues_of_celery_itself_have_no_metrics_unless_asked_for_and_a_limited_one_tells_how_full_it_is(broker_url, channel):
    declare(channel, "q", "w1@pod-7f.celery.pidbox")
    declare(channel, "limited", arguments={"x-max-length": 4})
    publish(channel, "limited", 1)

    def found(**options):
        collector = BrokerCollector(lambda: BrokerAdmin(broker_url), **options)
        registry = CollectorRegistry()
        registry.register(collector)
        samples = samples_of(generate_latest(registry).decode())
        collector.close()
        return samples

    assert {labels[0] for name, *labels in found() if name == "queue_consumers"} == {"q", "limited"}
    assert {labels[0] for name, *labels in found(internal=True) if name == "queue_consumers"} >= {"w1@pod-7f.celery.pidbox"}
    assert {labels[0]: value for (name, *labels), value in found().items() if name == "queue_full_ratio"} == {"limited": 0.25}


def test_a_server_that_is_away_is_down_and_up_again_when_it_is_back(own_server, caplog):
    collector = BrokerCollector(lambda: BrokerAdmin(own_server.url()))
    registry = CollectorRegistry()
    registry.register(collector)
    assert samples_of(generate_latest(registry).decode())[("up",)] == 1
    own_server.kill()
    for _ in range(2):
        found = samples_of(generate_latest(registry).decode())
        assert found[("up",)] == 0
        assert set(found) == {("up",), ("scrape_seconds",)}
    assert len([one for one in caplog.records if "cannot be asked" in one.message]) == 1
    own_server.restart()
    assert samples_of(generate_latest(registry).decode())[("up",)] == 1
    collector.close()


def test_without_prometheus_client_the_extra_is_named(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    printed = cli("exporter")
    assert printed.status == 1
    assert "pip install 'prometheus-client>=0.20'" in printed.err


@pytest.mark.parametrize("port", ["70000", "http"])
def test_a_port_that_is_none_is_refused(cli, port):
    printed = cli("exporter", "--port", port)
    assert printed.status == 2
    assert "--port" in printed.err


def test_limiters_have_series_by_name_of_the_twenty_with_the_most_waiting(channel, broker_url):
    declare(channel, "q")
    for number in range(22):
        publish(channel, "q", "x", headers={"x-limiter": f"l{number}:1/h"})
    for key in ("a", "b"):
        publish(channel, "q", "x", "y", headers={"x-limiter": f"keyed:1/h key={key}"})
    while channel.basic_get("q"):
        pass
    with BrokerAdmin(broker_url) as admin:
        admin.hold_limiter("keyed", 60)
    collector = BrokerCollector(lambda: BrokerAdmin(broker_url))
    samples = {
        (one.name, one.labels["limiter"]): one.value
        for family in collector.collect()
        for one in family.samples
        if "limiter" in one.labels
    }
    collector.close()
    assert samples["celery_redis_plus_limiter_waiting_messages", "keyed"] == 2
    assert samples["celery_redis_plus_limiter_held", "keyed"] == 1
    assert len(samples) == 40
