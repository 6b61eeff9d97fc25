"""WRONGTYPE and NOPERM name the script and the keys wherever a user meets them."""

from __future__ import annotations

import re
import subprocess
import sys

import kombu
import pytest

from celery_redis_plus.errors import NoPermission, ServerUnavailable, WrongKeyType
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until

FOREIGN = r"script {}, one of the keys [^)]*{}[^)]*\)\. What to do: use another database"


@pytest.mark.parametrize("key", ["meta", "queue", "wakeup"])
def test_a_publish_into_a_foreign_key_names_it(channel, redis_client, key):
    declare(channel, "q")
    redis_client.delete(f"{key}:{{q}}")
    redis_client.set(f"{key}:{{q}}", "foreign")
    with pytest.raises(WrongKeyType, match=FOREIGN.format(r"\w+", rf"{key}:\{{q\}}")):
        publish(channel, "q", "x")


@pytest.mark.parametrize("kind", ["queue", "meta", "wakeup"])
def test_a_publish_to_several_queues_reaches_those_that_take_it(channel, connect, redis_client, kind):
    exchange = kombu.Exchange("x", "topic", durable=True)
    for name in ("a", "bad", "c"):
        kombu.Queue(name, exchange, "#", durable=True)(channel).declare()
    redis_client.delete(f"{kind}:{{bad}}")
    redis_client.set(f"{kind}:{{bad}}", "foreign")
    with pytest.raises(WrongKeyType, match=rf"{kind}:\{{bad\}}"):
        kombu.Producer(connect().channel(), exchange).publish("x", routing_key="k")
    assert [redis_client.zcard(f"queue:{{{name}}}") for name in ("a", "c")] == [1, 1]


def test_consuming_and_declaring_a_foreign_key_name_it(channel, connect, redis_client):
    declare(channel, "q")
    publish(channel, "q", "x")
    redis_client.set("messages_index:{q}", "foreign")
    with pytest.raises(WrongKeyType, match=FOREIGN.format("claim", r"messages_index:\{q\}")):
        channel.basic_get("q")
    redis_client.set("meta:{r}", "foreign")
    with pytest.raises(WrongKeyType, match=r"\(command HGET, key \S*meta:\{r\}\)"):
        declare(connect().channel(), "r")


def test_an_ack_that_meets_a_foreign_key_names_it_in_the_log(channel, redis_client, caplog):
    declare(channel, "q")
    publish(channel, "q", "x")
    message = channel.basic_get("q")
    redis_client.set("messages_index:{q}", "foreign")
    message.ack()
    # Its reply is read with the next call.
    declare(channel, "other")
    refusal = "the server refuses to ack messages of queue 'q': "
    told = wait_until(lambda: [record.getMessage() for record in caplog.records if refusal in record.getMessage()])
    assert re.search(FOREIGN.format("ack", r"messages_index:\{q\}"), told[0])


def test_the_command_line_names_a_foreign_key(channel, redis_client, broker_url):
    declare(channel, "q")
    redis_client.set("dead:{q}", "foreign")
    command = [sys.executable, "-m", "celery_redis_plus", "dead-letters", "list", "--url", broker_url, "q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert re.search(r"WRONGTYPE.*keys \S*dead:\{q\}", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.fixture
def as_user(start_server, connect):
    """Connect as a user with these ACL rules, to a server with a queue `q` and a message in it."""
    server = start_server()
    setup = connect(server.url()).channel()
    declare(setup, "q")
    publish(setup, "q", "x")

    def enter(*rules):
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rules)
            admin.script_flush()
        return connect(server.url().replace("://", "://app:pw@")).channel()

    return enter


def test_a_key_outside_of_the_users_patterns_is_named(as_user):
    refused = as_user("+@all", "~*:{q}", "~*:{q}:*", "~queues", "~queue_ids", "~database_id", "~exchanges")
    publish(refused, "q", "y")
    with pytest.raises(NoPermission, match=r"\(command \w+, key meta:\{other\}\)"):
        declare(refused, "other")


def test_where_a_script_may_not_use_a_key_all_of_its_keys_are_named(as_user):
    patterns = ["~queues", "~database_id", *(f"~{kind}:{{q}}*" for kind in ("meta", "message", "wakeup", "producer"))]
    with pytest.raises(NoPermission, match=r"script publish_ordinary, one of the keys .*meta:\{q\}, queue:\{q\}, message:\{q\}:"):
        publish(as_user("+@all", *patterns), "q", "y")


def test_a_command_that_a_script_may_not_run_is_named_with_the_script(as_user):
    refused = as_user("+@all", "-zadd", "~*")
    # Redis 7.0 does not name the command.
    with pytest.raises(NoPermission, match=r"('zadd'|The user executing the script can't run).*\(script publish_ordinary\)"):
        publish(refused, "q", "y")
    with pytest.raises(NoPermission, match=r"('zadd'|The user executing the script can't run).*\(script claim\)"):
        refused.basic_get("q")


def test_a_user_who_may_not_load_scripts_hears_of_that(as_user):
    refused = as_user("+@all", "-script|load", "~*")
    with pytest.raises(NoPermission, match=r"'script\|load'") as caught:
        publish(refused, "q", "y")
    assert not isinstance(caught.value, ServerUnavailable)
