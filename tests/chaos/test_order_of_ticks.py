"""The event loop calls what is to run each turn in an order of its own: a set's, another one in each process."""

import select

from kombu import Connection, Consumer, Queue
from kombu.asynchronous import Hub

import celery_redis_plus  # noqa: F401 - makes kombu know the scheme


def test_a_delivery_gives_those_another_turn_who_had_theirs_before(*, own_server):
    """Or the prefork pool learns a second later that it has a job: it registers its writers in a tick of its own."""
    hub = Hub()
    seen = []
    with Connection(own_server.url()) as connection:
        transport = connection.transport
        transport.register_with_event_loop(connection.connection, hub)
        hub.on_tick.add(lambda: None)
        with Consumer(connection, [Queue("q")], callbacks=[lambda body, _: seen.append(body)], prefetch_count=1):
            connection.Producer().publish("m", routing_key="q")
            waker = transport.delivery_loop.server.session.waker
            transport.delivery_loop.on_tick()
            assert seen == ["m"]
            assert select.select([waker.fileno()], [], [], 0)[0], "the loop would sleep now"
            transport.delivery_loop.on_tick()
            assert not select.select([waker.fileno()], [], [], 0)[0], "the loop never sleeps"
    hub.close()
