"""A worker's end as in Celery 5.7's prefork pool: the loop's thread waits for the pool, another fires the loop's timers."""

import threading

import pytest

from celery_redis_plus.maintenance.process_services import set_keeper
from tests.support.active_tasks import KnownWorker
from tests.support.hubs import current_hub
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until

MESSAGES = 300


@pytest.fixture
def hub():
    with current_hub() as hub:
        yield hub


def test_acks_leave_although_the_loop_stands_still_and_another_thread_fires_its_timers(connect, hub):
    connection = connect()
    channel = connection.channel()
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", *range(MESSAGES))
    transport = connection.transport
    transport.register_with_event_loop(connection.connection, hub)
    wait_until(lambda: hub.run_once() or len(inbox.messages) == MESSAGES, 20)
    ended = threading.Event()
    errors = []

    def fire_timers():
        while not ended.wait(0.001):
            try:
                # Each is due at once: seconds of Celery's in a moment.
                for entry in [waiting.entry for waiting in list(hub.timer.queue)]:
                    entry()
                hub.fire_timers()
            except Exception as error:  # noqa: BLE001 - the test fails with it
                errors.append(error)

    timers = threading.Thread(target=fire_timers)
    set_keeper(KnownWorker(ends=True, active=True))
    try:
        timers.start()
        for message in inbox.messages:
            message.ack()
        with connect().channel() as other:
            wait_until(lambda: other.queue_sizes("q").unacked == 0, 20, lambda: other.queue_sizes("q"))
        wait_until(lambda: len(channel.session.service.unacked_messages) == 0, 20)
    finally:
        ended.set()
        timers.join(10)
        set_keeper(None)
    assert errors == []
    # Nothing was taken from the loop that its own thread has to do.
    publish(channel, "q", "last")
    wait_until(lambda: hub.run_once() or inbox.bodies[-1] == "last", 20)
    transport.unregister_from_event_loop(connection.connection, hub)
