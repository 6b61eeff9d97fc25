"""A read of broadcasts is bounded in bytes, and so is what a subscriber keeps of them."""

from __future__ import annotations

import threading

import kombu
import pytest

MB = 1_000_000


@pytest.mark.parametrize(("small", "others"), [(0, 0), (600, 0), (0, 1)], ids=["at once", "behind small", "beside a fast one"])
def test_a_backlog_of_large_broadcasts_fills_neither_the_server_nor_the_subscriber(connect, redis_client, small, others):
    connection, publisher = connect(), connect().channel()
    channel = connection.channel()
    got, ahead = [], []
    exchange = kombu.Exchange("fan", "fanout", durable=True)
    queue = kombu.Queue("fq", exchange)
    channel.basic_qos(0, 1, False)
    queue(channel).declare()
    held = []
    channel.basic_consume("fq", callback=lambda message: (got.append(len(message.body)), held.append(message)))
    for _ in range(others):
        fast = connection.channel()
        kombu.Queue("fast", exchange)(fast).declare()
        fast.basic_consume("fast", no_ack=True, callback=ahead.append)
    for _ in range(small):
        publisher.basic_publish(publisher.prepare_message(b"x"), exchange="fan")
    while len(got) < small:
        connection.drain_events(timeout=5)
        held.pop().ack()
    large = publisher.prepare_message(b"x" * MB)
    for _ in range(60):
        publisher.basic_publish(large, exchange="fan")
    peak, stop = [0], threading.Event()

    def look():
        while not stop.is_set():
            peak[0] = max(peak[0], *(int(client["omem"]) for client in redis_client.client_list()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        most = 0
        while len(ahead) < 60 * others:
            connection.drain_events(timeout=5)
        while len(got) < small + 60:
            if held:
                held.pop().ack()
            connection.drain_events(timeout=5)
            most = max(most, channel.consumer_session.reader.buffered)
    finally:
        stop.set()
        thread.join()
    assert got[small:] == [MB] * 60
    assert peak[0] < 10 * MB
    assert most <= 8 * (1 + others)
