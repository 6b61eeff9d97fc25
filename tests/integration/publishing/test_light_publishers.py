"""A process that only publishes loads what a publish needs: the first one of a command line or a web process waits for it."""

import subprocess
import sys

import pytest

#: Rooms, and of others the parts, that no publish needs. Of `consumer/` and `maintenance/` the parts that it does.
UNNEEDED = (
    *(f"celery_redis_plus.{room}." for room in ("cli", "admin", "migration", "spark", "testing", "demo", "integration.worker")),
    *("celery_redis_plus.integration.consumer_priority", "celery_redis_plus.integration.one_shard"),
    *("celery.worker.consumer", "celery.app.trace", "celery.concurrency.prefork", "billiard.pool"),
    *("celery_redis_plus.broker.consumers.claims", "celery_redis_plus.broker.fanout", "celery_redis_plus.broker.integrity"),
    *("celery_redis_plus.connection.master", "celery_redis_plus.connection.sentinel_"),
    *("celery_redis_plus.events", "celery_redis_plus.broker.arguments.retry_policy", "celery_redis_plus.broker.flow_control"),
)
NEEDED = {
    "celery_redis_plus.consumer": {"publisher_session", "owned_queues"},
    "celery_redis_plus.maintenance": {"process_services", "shared_state"},
}
PUBLISHES = """
import sys
from celery import Celery
app = Celery("x", broker=sys.argv[1])
if sys.argv[2] == "configured":
    from celery_redis_plus import configure_app
    configure_app(app)
app.send_task("x.y", queue="q", expires=60)
print(*sys.modules)
"""


@pytest.mark.not_on("sentinel", "sentinel-tls", "cluster", "cluster-tls", reason="they load what finds the master")
@pytest.mark.parametrize("setup", ["alone", "configured"])
def test_a_process_that_publishes_loads_neither_consumers_nor_maintenance(setup, broker_url):
    command = [sys.executable, "-c", PUBLISHES, broker_url, setup]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    ours = [module for module in loaded if module.startswith("celery_redis_plus")]

    assert "celery_redis_plus.broker.publishing.publisher" in ours
    assert [module for module in loaded if module.startswith(UNNEEDED)] == []
    for room, needed in NEEDED.items():
        assert {module.removeprefix(f"{room}.") for module in ours if module.startswith(f"{room}.")} == needed
    assert len(ours) < 102
