"""The whole table of ack policies and endings, on a real worker."""

from __future__ import annotations

import pytest

from celery_redis_plus.integration.ack_policies import ENDINGS, POLICIES
from tests.support.waiting import wait_until

#: How a task is told to end -> its ending. One that goes on after its soft time limit ends as any other.
WAYS = {name: name for name in ENDINGS} | {"soft": "failure", "soft_caught": "success"}
#: What a settlement is called in the events.
EVENTS = {"acked": "ack", "dead_lettered": "reject", "requeued": "requeue"}


#: What users were told, apart from the code's own table.
TABLE = """
            ack_first  ack_after  reject_on_error  nack_on_error  manual
success     ack        ack        ack              ack            requeue
retry       ack        ack        ack              ack            ack
ignored     ack        ack        ack              ack            ack
rejected    ack        reject     reject           reject         reject
requeue     ack        requeue    requeue          requeue        requeue
failure     ack        ack        reject           requeue        requeue
time_limit  ack        ack        reject           requeue        requeue
worker_lost ack        requeue    requeue          requeue        requeue
revoked     ack        ack        ack              ack            ack
"""


def expected(policy, way):
    policies, *rows = [line.split() for line in TABLE.strip().splitlines()]
    actions = {ending: dict(zip(policies, told, strict=True)) for ending, *told in rows}
    return actions[WAYS[way]][policy]


def test_every_policy_does_what_its_table_says_however_a_task_ends(life_app, life_worker, paths):
    app = life_app()
    worker = life_worker(
        concurrency=4,
        queues=tuple(POLICIES),
        configured={"queue_ack_policies": {policy: policy for policy in POLICIES}},
        settings={"broker_transport_options": {"visibility_timeout": 60}},
    )
    ids = {}
    revoked = [f"{policy} revoked" for policy in POLICIES]
    app.control.revoke(revoked)
    wait_until(
        lambda: [len(known) for known in (app.control.inspect(timeout=1).revoked() or {}).values()] == [5], 20, worker.tail
    )
    for policy in POLICIES:
        for way in WAYS:
            soft = {"soft_time_limit": 1}
            limits = {"soft": soft, "soft_caught": soft, "time_limit": {"time_limit": 1}}.get(way, {})
            task_id = f"{policy} {way}"
            ids[task_id] = (policy, way)
            app.send_task("life.end", [way], task_id=task_id, queue=policy, **limits)

    def settled():
        found = {}
        for policy in POLICIES:
            for path in paths(policy).values():
                settlement = next((event for event in path if event.event in EVENTS), None)
                if settlement is not None and path[0].retries == 0:
                    found[path[0].task_id] = settlement
        return found

    wait_until(lambda: settled().keys() == ids.keys(), 60, lambda: (ids.keys() - settled().keys(), worker.tail()))
    did = {key: EVENTS[event.event] for key, event in settled().items()}
    assert did == {key: expected(*ids[key]) for key in ids}
    reasons = {key: event.reason for key, event in settled().items() if event.event == "acked"}
    assert {reasons[f"ack_first {way}"] for way in WAYS if way != "revoked"} == {"early"}
    assert {policy: reasons[f"{policy} revoked"] for policy in POLICIES} == dict.fromkeys(POLICIES, "revoked")
    assert reasons["reject_on_error success"] is None
    assert reasons["nack_on_error retry"] == "retry"
    assert reasons["ack_after ignored"] == "ignored"
    failed = settled()["ack_after failure"]
    assert (failed.reason, failed.error) == ("failure", "ValueError: as asked")
    assert settled()["ack_after soft"].error.startswith("SoftTimeLimitExceeded")
    assert settled()["ack_after time_limit"].error.startswith("TimeLimitExceeded")


def test_a_tasks_own_policy_goes_before_its_queues_and_the_apps(life_app, life_worker, paths):
    configured = {"ack_policy": "reject_on_error", "queue_ack_policies": {"celery": "ack_after"}}
    life_worker(concurrency=1, pool="solo", configured=configured)
    life_app().send_task("life.own")
    wait_until(lambda: any(path[-1].event == "acked" for path in paths("celery").values()), 20)
    (path,) = paths("celery").values()
    assert [event.event for event in path] == ["published", "claimed", "requeued", "claimed", "acked"]
    assert path[1].worker.startswith("celery@") or "@" in path[1].worker


@pytest.mark.parametrize(
    ("late", "last"),
    [(True, ("acked", "failure", "ValueError: as asked")), (False, ("failed", "failure", "ValueError: as asked"))],
)
def test_without_a_policy_celerys_settings_hold_and_events_tell_how_the_work_ended(late, last, life_app, life_worker, paths):
    settings = {"task_acks_late": late}
    life_worker(concurrency=1, pool="solo", settings=settings)
    life_app(settings=settings).send_task("life.end", ["failure"])
    wait_until(lambda: any(path[-1].event == last[0] for path in paths("celery").values()), 20)
    (path,) = paths("celery").values()
    assert (path[-1].event, path[-1].reason, path[-1].error) == last


def test_beside_queues_with_a_policy_celerys_settings_hold_in_the_others(life_app, life_worker, paths):
    on_failure = dict.fromkeys(("acks_on_failure_or_timeout", "acks_on_failure", "acks_on_timeout"), False)
    settings = {"task_acks_late": True, **{f"task_{name}": value for name, value in on_failure.items()}}
    worker = life_worker(concurrency=3, settings=settings, configured={"queue_ack_policies": {"other": "ack_after"}})
    app = life_app(settings=settings)
    ways = {"success": "acked", "failure": "dead_lettered", "time_limit": "requeued", "worker_lost": "dead_lettered"}
    for way in ways:
        app.send_task("life.end", [way], task_id=way, **({"time_limit": 1} if way == "time_limit" else {}))

    def settled():
        ends = {path[0].task_id: [event.event for event in path if event.event in EVENTS] for path in paths("celery").values()}
        return {way: events[0] for way, events in ends.items() if events}

    wait_until(lambda: settled().keys() == ways.keys(), 30, worker.tail)
    assert settled() == ways


def test_a_policy_that_does_not_exist_is_refused(life_app):
    from celery_redis_plus.errors import OptionError

    with pytest.raises(OptionError, match="'never' of the app; allowed: ack_first, ack_after"):
        life_app(ack_policy="never")
