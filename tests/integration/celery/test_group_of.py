"""A configured app names the message groups of the tasks that it sends."""

from __future__ import annotations

import pytest
from kombu import Queue

from celery_redis_plus import configure_app
from celery_redis_plus.testing import running_worker

ARGUMENTS = {"x-group-concurrency": 1}


def groups(redis_client):
    """Return the groups of the queue `q`, each with how many messages it has ready and held."""
    found = {}
    for member in redis_client.zrange("groups:{q}", 0, -1):
        group, _, rest = member.partition(b"\0")
        found.setdefault(group.decode(), []).append(rest[:1].decode())
    return found


def test_group_of_gets_name_and_arguments_and_a_header_goes_first(celery_app, redis_client):
    app = celery_app("configured", task_queues=[Queue("q", durable=True, queue_arguments=ARGUMENTS)], task_default_queue="q")
    asked = []

    def group_of(task, args, kwargs):
        asked.append((task, tuple(args), dict(kwargs)))
        return kwargs.get("customer") or (args[0] if args else None)

    configure_app(app, group_of=group_of)

    @app.task(name="c.work", shared=False)
    def work(*_, **__):
        """Do nothing."""

    work.delay(7)
    work.apply_async(kwargs={"customer": "c1"})
    work.apply_async(kwargs={"customer": "c1"}, headers={"other": 1})
    work.apply_async(("x",), headers={"x-message-group": "own"})
    app.send_task("c.work", ("sent",))
    work.delay()
    (work.si(7) | work.si("after")).apply_async()

    assert asked == [
        ("c.work", (7,), {}),
        ("c.work", (), {"customer": "c1"}),
        ("c.work", (), {"customer": "c1"}),
        ("c.work", ("sent",), {}),
        ("c.work", (), {}),
        ("c.work", (7,), {}),
    ]
    assert groups(redis_client) == {"7": ["h", "r"], "c1": ["h", "r"], "own": ["r"], "sent": ["r"]}
    assert redis_client.zcard("queue:{q}") == 5


@pytest.mark.parametrize(
    ("settings", "late", "warns"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"queue_ack_policies": {"q": "ack_after"}}, False, False),
        ({"ack_policy": "ack_first"}, True, True),
    ],
)
def test_a_worker_warns_of_tasks_that_pass_a_limit_by(celery_app, capfd, settings, late, warns):
    queues = [Queue("q", durable=True, queue_arguments=ARGUMENTS), Queue("free", durable=True)]
    app = celery_app("configured", task_queues=queues, task_default_queue="q", task_acks_late=late)
    configure_app(app, **settings)

    @app.task(name="c.licensed", shared=False, rate_limit="licences:concurrency=2")
    def licensed():
        """Do nothing."""

    @app.task(name="c.unique", shared=False, unique="until-success")
    def unique():
        """Do nothing."""

    with running_worker(app, pool="solo"):
        pass
    told = [line for line in capfd.readouterr().err.splitlines() if "acked before they run" in line]
    causes = ("queue 'q' has x-group-concurrency=1", "a limiter with a concurrency", "unique='until-success'")
    found = [[f"{cause}, and these are" in line for cause in causes] for line in told]
    assert found == ([[True, False, False], [False, True, False], [False, False, True]] if warns else [])
    assert not warns or ("c.add, c.die" in told[0] and "c.licensed." in told[1] and "c.unique." in told[2])
