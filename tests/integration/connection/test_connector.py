"""Opening connections to a real server: what a connection is like, and what is said when there is none."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import redis.exceptions as redis_errors
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from celery_redis_plus import errors
from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.error_translation import translate
from tests.support.machine_time import machine_time

pytestmark = pytest.mark.server


@pytest.fixture
def silent_port():
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def ask_translated(connection, ask):
    """Block for longer than the connection's timeout; raise what a user gets to see."""
    try:
        ask(connection, "BLPOP", "nothing", "3")
    except redis_errors.RedisError as error:
        raise translate(error, Address("127.0.0.1")) from error


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def client_info(connection, ask):
    """Return what CLIENT LIST says of this connection."""
    mine = ask(connection, "CLIENT", "ID")
    lines = ask(connection, "CLIENT", "LIST").decode().splitlines()
    fields = [dict(word.partition("=")[::2] for word in line.split(" ")) for line in lines]
    return next(found for found in fields if found["id"] == str(mine))


def test_a_connection_is_named_selected_and_speaks_resp2(plain_server, connect, ask):
    connection = connect(plain_server.url(db=3)).open("command")
    info = client_info(connection, ask)
    assert (info["name"], info["db"], info["resp"]) == ("celery-redis-plus:command", "3", "2")
    # CLIENT SETINFO, and with it the field, came with Redis 7.2.
    assert info.get("lib-name", "redis-py(celery-redis-plus_v").startswith("redis-py(celery-redis-plus_v")
    assert ask(connection, "ECHO", "ä") == "ä".encode()
    assert type(connection) is Connection


def test_the_users_client_name_is_used_for_every_purpose(plain_server, connect, ask):
    connection = connect(plain_server.url(), client_name="shop").open("wakeups")
    assert client_info(connection, ask)["name"] == "shop"


def test_threads_open_connections_at_the_same_time(plain_server, connect, ask):
    connector = connect(plain_server.url())
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(ask(connector.open(), "PING"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 20


def test_redis_py_neither_retries_nor_pings_by_itself(plain_server, connect, ask):
    connection = connect(plain_server.url(), retry_on_timeout=True, health_check_interval=1).open()
    assert connection.health_check_interval == 0
    assert connection.retry.get_retries() == 0
    assert not connection.retry_on_error


def test_keepalive_is_on_with_defined_intervals_unless_switched_off(plain_server, connect):
    sock = connect(plain_server.url()).open()._sock  # noqa: SLF001 - redis-py has no public name for it
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    off = connect(plain_server.url(), socket_keepalive=False).open()._sock  # noqa: SLF001 - redis-py has no public name for it
    assert off.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    own = {socket.TCP_KEEPIDLE: 77}
    chosen = connect(plain_server.url(), socket_keepalive_options=own).open()._sock  # noqa: SLF001 - redis-py has no public name for it
    assert chosen.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77


def test_the_timeout_is_the_callers_after_the_handshake(plain_server, connect, ask):
    connection = connect(plain_server.url()).open(timeout=0.2)
    started, by_machine = time.monotonic(), machine_time()
    with pytest.raises(errors.ServerTimeout):
        ask_translated(connection, ask)
    assert time.monotonic() - started > 0.1
    assert machine_time() - by_machine < 1.5


def test_without_a_timeout_a_blocking_call_waits_longer_than_the_handshake_may(plain_server, connect, ask):
    connection = connect(plain_server.url(), socket_connect_timeout=0.2, socket_timeout=0.2).open(timeout=None)
    assert connection.socket_timeout is None
    assert ask(connection, "BLPOP", "nothing", "1") is None


def test_nobody_listening_is_reported_at_once_and_retryable(closed_port, connect):
    with pytest.raises(errors.ServerUnreachable, match=rf"redisplus://127\.0\.0\.1:{closed_port}/0: .*refused") as caught:
        connect(f"redisplus://127.0.0.1:{closed_port}").open()
    assert isinstance(caught.value, redis_errors.ConnectionError)
    assert isinstance(caught.value.__cause__, redis_errors.ConnectionError)


def test_an_unknown_host_is_reported(connect):
    with pytest.raises(errors.ServerUnreachable, match=r"broker\.invalid"):
        connect("redisplus://broker.invalid").open()


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_server_that_never_answers_is_given_up_within_the_connect_timeout(silent_port, connect, timeout):
    started = machine_time()
    with pytest.raises(errors.ServerTimeout, match="socket_connect_timeout"):
        connect(f"redisplus://127.0.0.1:{silent_port}", socket_connect_timeout=0.3).open(timeout=timeout)
    assert machine_time() - started < 2


def test_a_frozen_server_is_given_up_within_the_connect_timeout(start_server, connect):
    server = start_server()
    server.freeze()
    try:
        with pytest.raises(errors.ServerTimeout):
            connect(server.url(), socket_connect_timeout=0.3).open(timeout=None)
    finally:
        server.thaw()


def test_something_else_than_redis_is_recognised(connect):
    def answer(listener):
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(errors.NotRedis, match="host and port"):
            connect(f"redisplus://127.0.0.1:{listener.getsockname()[1]}").open()
        thread.join()


@pytest.mark.parametrize("kind", [Connection, SSLConnection])
def test_what_redis_pys_connect_raises_surfaces_as_kombus_tests_expect(kind, connect, monkeypatch):
    def fail(_self):
        raise TimeoutError("timed out")  # socket.timeout

    monkeypatch.setattr(kind, "_connect", fail)
    scheme = "redispluss" if kind is SSLConnection else "redisplus"
    with pytest.raises(redis_errors.TimeoutError) as caught:
        connect(f"{scheme}://127.0.0.1:1").open()
    assert type(caught.value) is errors.ServerTimeout


def test_a_unix_socket_works_and_a_missing_one_is_reported(start_server, connect, ask, tmp_path):
    path = tmp_path / "server.sock"
    start_server({"unixsocket": str(path)})
    connection = connect(f"redisplus+socket://{path}?virtual_host=2").open(timeout=0.5)
    assert isinstance(connection, UnixDomainSocketConnection)
    assert client_info(connection, ask)["db"] == "2"
    with pytest.raises(errors.ServerTimeout):
        ask_translated(connection, ask)
    with pytest.raises(errors.ServerUnreachable, match=r"no\.sock"):
        connect(f"redisplus+socket://{tmp_path}/no.sock").open()


def test_a_database_that_the_server_does_not_have_is_named(plain_server, connect):
    with pytest.raises(errors.InvalidAddress, match=r"/99: DB index is out of range.*0 to 15 by default"):
        connect(plain_server.url(db=99)).open()


def test_too_many_clients_says_so(start_server, connect):
    server = start_server({"maxclients": "2"})
    connector = connect(server.url())
    connector.open()
    connector.open()
    with pytest.raises(errors.ServerUnreachable, match="maxclients"):
        connector.open()


def test_nothing_stays_open_after_a_failure(start_server, connect):
    server = start_server({"requirepass": "right"})
    before = open_files()
    connector = connect(server.url().replace("right", "wrong"))
    for _ in range(5):
        with pytest.raises(errors.AuthenticationFailed):
            connector.open()
    assert open_files() == before


def test_an_interruption_while_connecting_closes_the_socket(silent_port, connect):
    def interrupt(_signal, _frame):
        raise KeyboardInterrupt

    before = open_files()
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            connect(f"redisplus://127.0.0.1:{silent_port}").open()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert open_files() == before


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_opens_its_own_connections(plain_server, connect, ask):
    connector = connect(plain_server.url())
    connector.open()
    child = os.fork()
    if child == 0:
        try:
            ask(Connector.open(connector, "child", timeout=5), "PING")
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must not return into pytest
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_credential_provider_logs_in(start_server, connect, ask):
    server = start_server({"requirepass": "right"})
    path = "redis.credentials.UsernamePasswordCredentialProvider"
    with pytest.raises(errors.AuthenticationFailed):
        connect(f"redisplus://127.0.0.1:{server.port}", credential_provider=path).open()
    from redis.credentials import UsernamePasswordCredentialProvider

    provider = UsernamePasswordCredentialProvider("default", "right")
    connection = connect(f"redisplus://x:y@127.0.0.1:{server.port}", credential_provider=provider).open()
    assert ask(connection, "PING") == b"PONG"


def test_the_warning_about_eviction_comes_once_a_process(start_server, connect, caplog):
    server = start_server({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    connector = connect(server.url())
    with caplog.at_level(logging.WARNING):
        connector.open()
        connector.open()
    assert caplog.text.count("WILL DELETE WAITING MESSAGES") == 1
