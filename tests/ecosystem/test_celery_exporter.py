"""celery-exporter (danihodovic/celery-exporter; on PyPI prometheus-exporter-celery), scraped as Prometheus does it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import wait_until

if find_spec("src") is None or find_spec("src.exporter") is None:
    pytest.skip("celery-exporter is not installed: tox -e ecosystem", allow_module_level=True)

START = "from src.cli import cli; cli()"


def gauges(page):
    return {
        (sample.name, sample.labels["queue_name"]): sample.value
        for family in text_string_to_metric_families(page or "")
        for sample in family.samples
        if family.type == "gauge" and "queue_name" in sample.labels
    }


@pytest.mark.parametrize("setup", ["alone", "configured"])
def test_celery_exporter_shows_all_that_needs_a_worker(start_program, celery_app, celery_worker, broker_url, setup):
    celery_worker(setup)
    app = celery_app(setup)
    app.send_task("c.add", [1, 2], queue="other")
    app.send_task("c.add", [1, 2], countdown=3600, queue="other")
    with app.connection() as connection:
        assert connection.default_channel.basic_get("other")
        options = ("--broker-url", broker_url, "--port", "{port}", "--host", "127.0.0.1", "--queues", "celery,other")
        program = start_program("-c", START, *options)
        program.wait_for("/metrics")

        found = wait_until(lambda: gauges(program.ask("/metrics")), 30, program.log, interval_s=0.2)

    assert found["celery_queue_length", "other"] == 2
    assert found["celery_queue_length", "celery"] == 0
    assert found["celery_active_worker_count", "celery"] == 1
