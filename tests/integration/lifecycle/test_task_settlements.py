"""`ack()`, `nack()` and `reject()` inside a running task, and how the message fares when the task goes on."""

from __future__ import annotations

import threading

import pytest
from kombu import Queue
from kombu.common import Broadcast

import celery_redis_plus as crp
from celery_redis_plus.errors import InvalidArgument, NotSettled
from celery_redis_plus.integration import worker_settlements
from celery_redis_plus.maintenance.process_services import services
from celery_redis_plus.testing import running_worker
from celery_redis_plus.transport import publishing
from tests.support.waiting import wait_until

pytestmark = pytest.mark.same_everywhere

LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
#: What the task does, and how it goes on -> the events behind `claimed`: with reason, error and delay, as far as there are.
FATES = {
    ("ack", "return"): ["acked"],
    ("ack", "raise"): ["acked", "failed failure ValueError: as asked"],
    ("ack", "reject"): ["acked"],
    ("ack", "retry"): ["acked", "failed retry"],
    ("nack", "return"): ["requeued rejected", "claimed", "acked"],
    ("nack", "raise"): ["requeued rejected", "claimed", "acked"],
    ("nack 0.3", "return"): ["retried rejected 300", "promoted", "claimed", "acked"],
    ("nack 0.3", "retry"): ["retried rejected 300", "promoted", "claimed", "acked"],
    ("nack 0", "raise"): ["requeued rejected", "claimed", "acked"],
    ("reject", "return"): ["dead_lettered rejected"],
    ("reject no such street", "raise"): ["dead_lettered rejected Reject: no such street"],
    ("reject no such street", "reject"): ["dead_lettered rejected Reject: no such street"],
    ("ack, ack", "return"): ["acked", "failed failure NotSettled: ack() comes after ack() in task life.settle[ack, ack return]"],
    ("nack 0.3, reject", "return"): ["retried rejected 300", "promoted", "claimed", "acked"],
}
#: Of pools whose processes may be ended.
DEATHS = {
    ("ack", "die"): ["acked", "failed failure WorkerLostError"],
    ("nack 0.3", "die"): ["retried rejected 300", "promoted", "claimed", "acked"],
    ("reject no such street", "die"): ["dead_lettered rejected Reject: no such street"],
    ("ack", "wait"): ["acked", "failed failure TimeLimitExceeded"],
    ("nack 0.3", "wait"): ["retried rejected 300", "promoted", "claimed", "acked"],
}


def told(path):
    """Return what the events behind the first claim say."""
    described = []
    for event in path[2:]:
        parts = (event.event, event.reason, event.error, event.delay)
        described.append(" ".join(str(part) for part in parts if part))
    return described


@pytest.mark.sample(3)
@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent", pytest.param("eventlet", marks=pytest.mark.weekly)])
def test_a_settled_message_fares_as_its_task_said_however_the_task_goes_on(pool, life_app, life_worker, paths):
    if pool in {"gevent", "eventlet"}:
        pytest.importorskip(pool)
    fates = FATES | (DEATHS if pool == "prefork" else {})
    worker = life_worker(pool=pool, settings=LATE, concurrency=2)
    app = life_app()
    for steps, then in fates:
        limits = {"time_limit": 1} if then == "wait" else {}
        app.send_task("life.settle", [steps, then], task_id=f"{steps} {then}", **limits)

    def found():
        by_task = {path[0].task_id: told(path) for path in paths("celery").values() if not path[0].retries}
        return {key: by_task.get(" ".join(key), []) for key in fates}

    def is_as_expected():
        return all(
            len(events) == len(fates[key]) and all(map(str.startswith, events, fates[key])) for key, events in found().items()
        )

    wait_until(is_as_expected, 60, lambda: ({key: got for key, got in found().items() if got != fates[key]}, worker.tail()))


def test_a_task_settles_its_message_where_no_task_waits_for_a_free_process(life_app, life_worker, paths):
    worker = life_worker(pool="prefork", settings={**LATE, "worker_pool_putlocks": False}, concurrency=1)
    life_app().send_task("life.settle", ["reject", "return"])
    wait_until(lambda: [told(path) for path in paths("celery").values()] == [["dead_lettered rejected"]], 30, worker.tail)


def test_a_message_that_was_acked_early_is_not_settled_again(life_app, life_worker, paths):
    life_worker(settings={"task_acks_late": False}, concurrency=1)
    life_app().send_task("life.settle", ["nack", "return"])
    wait_until(lambda: any(path[-1].event == "failed" for path in paths("celery").values()), 30)
    (path,) = paths("celery").values()
    assert path[-1].error.startswith("NotSettled: nack() comes too late: the message of task life.settle[")
    assert path[-1].error.endswith("set acks_late=True, or an ack policy other than ack_first")


def test_a_kill_of_the_worker_repeats_nothing_that_was_acked(life_app, life_worker, paths, tmp_path):
    worker = life_worker(settings=LATE, concurrency=1)
    life_app().send_task("life.settle", ["ack", "wait", str(tmp_path / "acked")])
    wait_until((tmp_path / "acked").exists, 30, worker.tail)
    wait_until(lambda: any(path[-1].event == "acked" for path in paths("celery").values()), message=worker.tail)
    worker.kill()
    worker.start()
    life_app().send_task("life.settle", ["ack", "return"])
    wait_until(lambda: len(paths("celery")) == 2 and all(path[-1].event == "acked" for path in paths("celery").values()), 30)
    assert [len(path) for path in paths("celery").values()] == [3, 3]


# ---- in this process


def refusal_of(call, *arguments):
    with pytest.raises(NotSettled) as refused:
        call(*arguments)
    return str(refused.value)


EAGER = "which runs eagerly and has no message; call it in a task that was sent"


def test_an_eager_task_within_another_one_settles_nothing(app):
    @app.task(name="inner", shared=False)
    def inner():
        return refusal_of(crp.ack)

    @app.task(name="outer", shared=False)
    def outer():
        refusal = inner.apply().get(disable_sync_subtasks=False)
        crp.ack()
        return refusal

    result = outer.delay()
    with running_worker(app):
        refusal = result.get(timeout=30)
    assert refusal.startswith("ack() cannot settle task inner[")
    assert refusal.endswith(f"], {EAGER}")


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("forged", ["", "x 1", ["a"]])
def test_a_token_of_another_client_counts_for_nothing(app, forged, early, monkeypatch):
    # Ours drops it.
    monkeypatch.setattr(publishing, "LOCAL_PROPERTIES", publishing.LOCAL_PROPERTIES - {"redisplus_delivery"})

    @app.task(name="forged", shared=False, acks_late=not early)
    def settle():
        if early:
            return refusal_of(crp.ack)
        return crp.ack()

    result = settle.apply_async(redisplus_delivery=forged)
    with running_worker(app):
        refusal = result.get(timeout=30)
    assert (refusal or "").startswith("ack() comes too late: the message of task forged[" if early else "")


def test_no_token_is_published(app, redis_client):
    app.send_task("nobody", redisplus_delivery="x 1")
    (tag,) = redis_client.zrange("queue:{celery}", 0, -1)
    stored = redis_client.hvals(f"message:{{celery}}:{tag.decode()}")
    assert b"correlation_id" in b"".join(stored)
    assert b"redisplus_delivery" not in b"".join(stored)


def test_a_forwarded_message_does_not_settle_the_one_it_was_made_of(app):
    @app.task(name="child", shared=False, bind=True)
    def child(self):
        crp.reject("by the child")
        settled.append(self.request.properties["redisplus_delivery"])

    @app.task(name="forward", shared=False, bind=True)
    def forward(self):
        own = {"delivery_tag", "delivery_info", "delivery_mode", "priority"}
        properties = {name: value for name, value in self.request.properties.items() if name not in own}
        settled.append(properties["redisplus_delivery"])
        with app.producer_pool.acquire() as producer:
            child.apply_async(producer=producer, **properties)
        wait_until(lambda: len(settled) == 2, 30)
        crp.ack()
        settled.append("acked")

    settled = []
    forward.delay()
    with running_worker(app, pool="threads", concurrency=2):
        wait_until(lambda: len(settled) == 3, 40, lambda: settled)
    assert settled[0] != settled[1]
    with app.connection_for_read() as connection:
        assert connection.default_channel.queue_counters("celery").dead_lettered == 1


def test_outside_a_task_there_is_nothing_to_settle(app):
    @app.task(name="eager", shared=False)
    def eager():
        return refusal_of(crp.reject)

    text = "was called outside a task of a worker; call it inside one, in the thread that runs it"
    assert refusal_of(crp.ack) == f"ack() {text}"
    assert refusal_of(crp.nack, 3) == f"nack() {text}"
    eager = eager.apply()
    assert eager.get() == f"reject() cannot settle task eager[{eager.id}], {EAGER}"


@pytest.mark.parametrize("delay", [-1, "3", True, float("inf"), float("nan"), 1e12])
def test_a_delay_that_is_none_is_refused(delay):
    with pytest.raises(
        InvalidArgument, match=r"argument 'delay' of nack is .*; allowed is a number of seconds from 0 on, and None"
    ):
        crp.nack(delay)


def test_a_task_that_another_one_calls_settles_the_message_of_the_caller(app):
    @app.task(name="inner", shared=False)
    def inner():
        crp.ack()

    @app.task(name="outer", shared=False)
    def outer():
        inner()
        in_thread = []
        thread = threading.Thread(target=lambda: in_thread.append(refusal_of(crp.ack)))
        thread.start()
        thread.join()
        return [refusal_of(crp.ack), *in_thread]

    result = outer.delay()
    with running_worker(app):
        again, in_thread = result.get(timeout=30)
    assert again == f"ack() comes after ack() in task outer[{result.id}]: its message is settled"
    assert "outside a task" in in_thread


def lose_lease(task, redis_client):
    """Give the message of a running task to another consumer; return the key of its hash."""
    tag = task.request.properties["delivery_tag"]
    (unacked,) = filter(None, (service.unacked_messages.find(tag) for service in services()))
    (key,) = redis_client.scan_iter(f"message:*{tag}")
    redis_client.hincrby(key, "claim", 1)
    unacked.lease_lost = True
    return key.decode()


def test_a_message_that_another_consumer_has_is_acked(app, redis_client):
    @app.task(name="late", shared=False, bind=True)
    def late(self):
        key = lose_lease(self, redis_client)
        crp.ack()
        return key

    result = late.delay()
    with running_worker(app):
        key = result.get(timeout=30)
        wait_until(lambda: not redis_client.exists(key), 10)


@pytest.mark.parametrize(
    ("pool", "how"),
    [
        ("threads", "nack"),
        ("prefork", "reject"),
        pytest.param("threads", "reject", marks=pytest.mark.weekly),
        pytest.param("prefork", "nack", marks=pytest.mark.weekly),
    ],
)
def test_a_refused_settlement_leaves_the_message_to_the_consumer_that_has_it(pool, how, app, redis_client):
    @app.task(name="loser", shared=False, bind=True)
    def loser(self):
        key = lose_lease(self, redis_client)
        if pool == "prefork":
            # What the main process does when it hears of it.
            worker_settlements.settle_for_child(token=self.request.properties[worker_settlements.TASK_DELIVERY], how=how)
            return key, None, None
        return key, refusal_of(getattr(crp, how)), refusal_of(crp.ack)

    @app.task(name="next", shared=False)
    def behind():
        return "done"

    result, last = loser.delay(), behind.delay()
    with running_worker(app):
        key, refusal, again = result.get(timeout=30)
        # A worker of one slot: the loser's end is behind it, and its place is free.
        assert last.get(timeout=30) == "done"
        wait_until(lambda: not any(len(service.unacked_messages) for service in services()), 10)
        assert redis_client.exists(key)
    if refusal is not None:
        assert refusal.startswith(f"{how}() comes too late: message ")
        assert refusal.endswith("is settled, or was given to another consumer")
        assert again.startswith("ack() comes too late: message ")


def test_a_broadcast_is_settled_and_does_not_wait(app):
    app.conf.task_queues = [Broadcast("news"), Queue("celery")]

    @app.task(name="hear", shared=False)
    def hear():
        with pytest.raises(InvalidArgument, match="a broadcast comes again at once; allowed is None"):
            crp.nack(1)
        crp.ack()
        heard.append(refusal_of(crp.nack))

    heard = []
    with running_worker(app):
        hear.apply_async(queue="news")
        wait_until(lambda: heard, 30)
    assert "nack() comes after ack()" in heard[0]
