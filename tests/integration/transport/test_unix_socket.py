"""`unix://` names a broker wherever a URL is taken."""

from __future__ import annotations

import kombu
import pytest
from celery import Celery

from celery_redis_plus import configure_app
from celery_redis_plus.cli.main import main
from tests.support.inbox import Inbox, declare, publish


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
        assert (channel.session.address.path, channel.session.address.db) == (str(path), int(bool(query)))
        if "visibility" in query:
            assert channel.session.options.visibility_timeout == 60
        with connection.clone() as other:
            assert other.default_channel.session.address.path == str(path)


@pytest.mark.parametrize("configure", [configure_app, lambda app: app])
def test_an_app_and_the_command_line_take_it(path, configure, capsys):
    app = configure(Celery("u", broker=f"unix://{path}?virtual_host=2", set_as_current=False))
    app.conf.task_default_queue = "u"
    app.send_task("t")
    with app.connection_for_read() as connection:
        assert connection.default_channel.queue_sizes("u").ready == 1
        connection.default_channel.queue_delete("u")
    app.close()
    assert main(["check", "--url", f"unix://{path}?virtual_host=2"]) == 0
