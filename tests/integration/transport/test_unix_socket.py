"""`unix://` names a broker wherever a URL is taken."""

from __future__ import annotations

import kombu
import pytest
import redis
from celery import Celery

from celery_redis_plus import configure_app
from tests.support.commands import run_command
from tests.support.inbox import Inbox, declare, publish
from tests.support.stored import now_ms


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    from tests.support.servers import new_server

    path = tmp_path_factory.mktemp("socket") / "s"
    with new_server({"unixsocket": str(path)}):
        yield path


@pytest.mark.parametrize("query", ["", "?db=1", "?virtual_host=1&visibility_timeout=60"])
def test_a_plain_connection_takes_it(path, query):
    url = f"unix://{path}{query}"
    with kombu.Connection(url) as connection:
        channel = connection.default_channel
        declare(channel, "q")
        publish(channel, "q", "x")
        assert Inbox(channel, "q").drain(1) == ["x"]
        with redis.Redis(unix_socket_path=str(path), db=int(bool(query))) as client:
            assert client.exists("meta:{q}")
            if "visibility" in query:
                publish(channel, "q", "y")
                channel.basic_get("q")
                [(_, lease_ends_ms)] = client.zrange("messages_index:{q}", 0, -1, withscores=True)
                assert 50_000 < lease_ends_ms - now_ms(client) <= 60_000
            client.flushdb()
        with connection.clone() as other:
            assert other.default_channel.queue_sizes("q").ready == 0


@pytest.mark.parametrize("configure", [configure_app, lambda app: app])
def test_an_app_and_the_command_line_take_it(path, configure, capsys):
    app = configure(Celery("u", broker=f"unix://{path}?virtual_host=2", set_as_current=False))
    app.conf.task_default_queue = "u"
    app.send_task("t")
    with app.connection_for_read() as connection:
        assert connection.default_channel.queue_sizes("u").ready == 1
        connection.default_channel.queue_delete("u")
    app.close()
    assert run_command("check", "--url", f"unix://{path}?virtual_host=2") == 0
