import weakref
from types import MethodType, SimpleNamespace

import pytest
from celery.bootsteps import CLOSE, RUN
from celery.concurrency.base import BasePool
from celery.worker import state

from celery_redis_plus import clock
from celery_redis_plus.broker.consumers.active_tasks import inactive
from celery_redis_plus.broker.consumers.settlement import Settlement
from celery_redis_plus.broker.consumers.unacked import UnackedMessage
from celery_redis_plus.integration.active_tasks import RunningTasks, note_given
from celery_redis_plus.transport.kombu_message import Message


class FlushingPool(BasePool):
    """Drops what waits, as prefork does."""

    def flush(self):
        """Drop it."""


class Consumer(SimpleNamespace):
    """What the active_tasks reads of Celery's consumer."""


class Request:
    def __init__(self, message):
        self.id = message.headers.get("id")
        self.message = message


def make_message(task_id="1", unacked=None, **headers):
    payload = {
        "body": b"",
        "headers": {"id": task_id, "task": "t", **headers},
        "properties": {"delivery_tag": "tag", "delivery_info": {}},
    }
    return Message(payload, unacked=unacked)


@pytest.fixture
def make_consumer():
    kept = []

    def make(pool=BasePool):
        consumer = Consumer(pool=pool(), blueprint=SimpleNamespace(state=RUN), controller=None, given=[])
        consumer.on_task_request = lambda request: consumer.given.append(request.message)
        consumer.pool.start()
        kept.append(consumer)
        return consumer

    return make


@pytest.fixture
def active():
    """Put requests among Celery's active ones."""
    requests = []

    def add(message):
        request = Request(message)
        requests.append(request)
        state.requests[request.id] = request
        state.active_requests.add(request)
        return request

    yield add
    for request in requests:
        state.requests.pop(request.id, None)
        state.active_requests.discard(request)


def test_a_cold_shutdown_keeps_nothing(make_consumer, active, monkeypatch):
    active_tasks = RunningTasks(make_consumer(BasePool))
    message = make_message()
    active(message)
    monkeypatch.setattr(state, "should_terminate", 0)
    assert active_tasks.is_active(message, clock.now_s()) is False


@pytest.mark.parametrize("pool", [BasePool, FlushingPool])
def test_running_task_is_kept_before_and_after_the_restart(pool, make_consumer, active):
    active_tasks = RunningTasks(consumer := make_consumer(pool))
    message = make_message()
    active(message)

    assert active_tasks.is_active(message, clock.now_s()) is True
    active_tasks.started()
    assert active_tasks.is_active(message, 0.0) is True
    consumer.pool.stop()
    assert active_tasks.is_active(message, 0.0) is False


@pytest.mark.parametrize(("pool", "kept"), [(BasePool, True), (FlushingPool, False)])
def test_waiting_task_is_decided_by_the_pool_once_the_consumer_is_back(pool, kept, make_consumer):
    active_tasks = RunningTasks(make_consumer(pool))
    active_tasks.started()
    message = make_message()
    orphaned_at = clock.now_s()

    message.given_to_pool = True
    assert active_tasks.is_active(message, orphaned_at) is None
    active_tasks.started()
    if not kept:
        # Perhaps it has only just ended, and its ack is on its way.
        assert active_tasks.is_active(message, orphaned_at) is None
    assert active_tasks.is_active(message, orphaned_at) is kept


def test_task_on_its_way_to_a_child_is_kept(make_consumer):
    active_tasks = RunningTasks(consumer := make_consumer(FlushingPool))
    request = Request(make_message())
    request.on_accepted = MethodType(print, request)
    consumer.pool._pool = SimpleNamespace(_cache={1: SimpleNamespace(_accept_callback=request.on_accepted)})  # noqa: SLF001
    active_tasks.started()

    assert active_tasks.is_active(request.message, 0.0) is True


def test_task_that_was_not_given_to_the_pool_goes_back_though_it_lives(make_consumer):
    """A request in Celery's timer, or one that waits for a rate limit, is dropped with the connection."""
    active_tasks = RunningTasks(consumer := make_consumer())
    note_given(consumer)
    waiting, dropped = make_message("1"), make_message("2")
    consumer.on_task_request(Request(waiting))
    active_tasks.started()

    assert active_tasks.is_active(waiting, 0.0) is True
    assert active_tasks.is_active(dropped, 0.0) is None
    assert active_tasks.is_active(dropped, 0.0) is False
    assert consumer.given == [waiting]


def test_task_that_has_ended_without_a_settlement_goes_back(make_consumer):
    """Such as one of a solo pool whose end met the lost connection: its traceback may keep it alive."""
    active_tasks = RunningTasks(consumer := make_consumer())
    note_given(consumer)
    message = make_message(unacked=UnackedMessage("tag", "q", 1, "session"))
    consumer.on_task_request(Request(message))
    message.begin()
    active_tasks.started()

    assert active_tasks.is_active(message, 0.0) is None
    assert active_tasks.is_active(message, 0.0) is False


def test_task_whose_message_went_back_is_not_given_to_the_pool(make_consumer):
    note_given(consumer := make_consumer())
    message = make_message(unacked=UnackedMessage("tag", "q", 1, "session", settlement=Settlement.RELEASE_SEEN))
    consumer.on_task_request(Request(message))

    assert (message.given_to_pool, consumer.given) == (False, [])


def test_a_pool_that_drops_what_waits_is_given_tasks_as_before(make_consumer):
    note_given(consumer := make_consumer(FlushingPool))
    message = make_message()
    consumer.on_task_request(Request(message))

    assert (message.given_to_pool, consumer.given) == (False, [message])


def test_message_that_is_no_task_goes_back_at_once(make_consumer):
    active_tasks = RunningTasks(make_consumer())
    message = make_message()
    del message.headers["task"]

    assert active_tasks.is_active(message, clock.now_s()) is False


def test_task_of_the_first_protocol_is_known_by_its_body(make_consumer, active):
    active_tasks = RunningTasks(make_consumer(FlushingPool))
    message = make_message()
    message.headers.clear()
    message._decoded_cache = {"task": "t", "id": "1"}  # noqa: SLF001 - what kombu sets by decoding
    active(message)

    assert active_tasks.is_active(message, clock.now_s()) is True


def test_retry_with_the_same_id_is_another_message(make_consumer, active):
    active_tasks = RunningTasks(make_consumer(FlushingPool))
    active_tasks.started()
    old, new = make_message(), make_message()
    active(new)

    assert active_tasks.is_active(old, 0.0) is None
    assert active_tasks.is_active(old, 0.0) is False
    assert active_tasks.is_active(new, 0.0) is True


def test_worker_that_shuts_down_or_is_gone_stops(make_consumer):
    active_tasks = RunningTasks(consumer := make_consumer())

    assert not active_tasks.is_stopping()
    consumer.blueprint.state = CLOSE
    assert active_tasks.is_stopping()
    orphan = RunningTasks(Consumer())
    assert orphan.is_stopping()
    assert orphan.is_active(make_message(), 0.0) is False


def test_task_that_has_ended_just_now_is_not_given_back_by_a_worker_that_stops(make_consumer):
    """Celery forgets a task before it acks its message; in a thread, others may run in between."""
    active_tasks = RunningTasks(make_consumer())

    def unacked(tag, message):
        record = UnackedMessage(tag, "q", 1, "session")
        record.message = weakref.ref(message)
        message._unacked = record  # noqa: SLF001 - as the channel makes it
        return record

    ended, waiting = make_message("1"), make_message("2")
    delivered = [unacked("ended", ended), unacked("waiting", waiting)]
    ended.begin()

    assert [one.tag for one in inactive(delivered, active_tasks)] == ["waiting"]
    del ended
    assert [one.tag for one in inactive(delivered, active_tasks)] == ["ended", "waiting"]
