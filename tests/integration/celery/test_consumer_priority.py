"""`celery worker --consumer-priority`."""

from __future__ import annotations

from celery_redis_plus.admin.broker_admin import BrokerAdmin


def test_a_worker_of_a_higher_priority_gets_the_tasks(celery_worker, celery_app, broker_url, notes):
    low = celery_worker("configured", name="low")
    high = celery_worker("configured", name="high", options=("--consumer-priority", "9"))
    with BrokerAdmin(broker_url) as operator:
        assert sorted(record.priority for record in operator.consumers("celery")) == [0, 9]
    app = celery_app("configured")
    for number in range(10):
        app.send_task("c.note", ("n", str(number)))
        notes.wait_for("n", number + 1)
    assert (low.log().count("c.note"), high.log().count("received")) == (1, 10), low.log()
    high.stop()
    app.send_task("c.note", ("n", "last"))
    notes.wait_for("n", 11)
