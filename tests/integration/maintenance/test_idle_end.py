"""The end of the maintenance threads where nobody needs them."""

from __future__ import annotations

from collections import Counter

from celery_redis_plus.maintenance import service
from tests.support.inbox import Inbox
from tests.support.waiting import wait_until


def names(redis_client):
    ours = "celery-redis-plus:"
    return Counter(client["name"].removeprefix(ours) for client in redis_client.client_list() if client["name"].startswith(ours))


def test_maintenance_begins_anew_after_it_ended_for_want_of_work(connect, redis_client, monkeypatch, caplog):
    monkeypatch.setattr(service, "IDLE_END_S", 0.0)
    for _ in range(3):
        connection = connect()
        thread = connection.default_channel.session.service
        inbox = Inbox(connection.channel(), "q")
        wait_until(lambda: names(redis_client)["timers"] == 1, message=lambda: names(redis_client))
        inbox.rest(0.05)
        connection.close()
        thread.wake()
        wait_until(lambda ended=thread: not ended.running)
        wait_until(lambda: names(redis_client)["timers"] == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
