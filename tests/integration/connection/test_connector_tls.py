"""TLS to a real server, with a certificate authority made for the test."""

from __future__ import annotations

import gc
import select
import socket
import struct
import threading
from contextlib import suppress

import pytest
import redis.exceptions as redis_errors
from redis.connection import SSLConnection

from celery_redis_plus import errors
from celery_redis_plus.connection import tls_mismatch
from celery_redis_plus.connection.masters import MasterFinder
from tests.support.tls import make_certificates, tls_in_front_of

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority and a certificate for `localhost`, in a folder."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls_port(plain_server, certificates):
    """A port that speaks TLS and leads to the server."""
    with tls_in_front_of(plain_server.port, certificates) as port:
        yield port


def test_a_connection_whose_certificate_is_checked(tls_port, certificates, connect, ask):
    url = f"redispluss://localhost:{tls_port}/2?ssl_ca_certs={certificates}/ca.pem"
    connection = connect(url).open(timeout=0.3)
    assert type(connection) is SSLConnection
    assert ask(connection, "PING") == b"PONG"
    with pytest.raises(redis_errors.TimeoutError):
        ask(connection, "BLPOP", "nothing", "3")


def test_tls_can_come_from_the_transport_options(tls_port, certificates, connect, ask):
    connector = connect(f"redisplus://localhost:{tls_port}", ssl={"ssl_ca_certs": f"{certificates}/ca.pem"})
    assert ask(connector.open(), "PING") == b"PONG"
    assert connector.address.display() == f"redispluss://localhost:{tls_port}/0"


def test_the_transport_option_completes_a_url_with_tls(tls_port, certificates, connect, ask):
    authority = {"ssl_ca_certs": f"{certificates}/ca.pem"}
    assert ask(connect(f"redispluss://localhost:{tls_port}", ssl=authority).open(), "PING") == b"PONG"
    # The URL goes first.
    elsewhere = connect(f"redispluss://127.0.0.1:{tls_port}?ssl_check_hostname=true", ssl={**authority, "check_hostname": False})
    with pytest.raises(errors.TlsFailed, match="ssl_check_hostname"):
        elsewhere.open()


def test_a_certificate_that_nobody_vouches_for_is_refused_with_what_to_do(tls_port, connect):
    with pytest.raises(errors.TlsFailed, match=r"certificate verify failed.*ssl_ca_certs"):
        connect(f"redispluss://localhost:{tls_port}").open()


def test_the_check_can_be_switched_off_for_a_test_server(tls_port, connect, ask):
    connection = connect(f"redispluss://localhost:{tls_port}?ssl_cert_reqs=none").open()
    assert ask(connection, "PING") == b"PONG"


def test_a_certificate_for_another_name_is_refused_unless_names_are_not_checked(tls_port, certificates, connect, ask):
    url = f"redispluss://127.0.0.1:{tls_port}?ssl_ca_certs={certificates}/ca.pem"
    with pytest.raises(errors.TlsFailed, match="ssl_check_hostname"):
        connect(url).open()
    assert ask(connect(f"{url}&ssl_check_hostname=false").open(), "PING") == b"PONG"


def test_no_tls_to_a_tls_port_is_said_with_the_remedy(tls_port, connect):
    with pytest.raises(errors.TlsFailed, match=r"^redisplus://localhost:\d+/0: the port speaks TLS.* with redispluss "):
        connect(f"redisplus://localhost:{tls_port}").open()


def test_tls_to_a_plain_port_is_said_with_the_remedy(plain_server, connect):
    url = plain_server.url(scheme="redispluss")
    with pytest.raises(errors.TlsFailed, match=r"the port does not speak TLS.* with redisplus "):
        connect(url, socket_connect_timeout=0.5).open()


def test_tls_to_a_plain_port_with_a_password_is_said_too(start_server, connect):
    url = start_server({"requirepass": "secret"}).url(scheme="redispluss")
    with pytest.raises(errors.TlsFailed, match=r"the port does not speak TLS"):
        connect(url, socket_connect_timeout=0.5).open()


@pytest.mark.parametrize("asked", ["redispluss+cluster", "redispluss+sentinel"])
def test_tls_to_plain_nodes_and_sentinels_is_said_after_each_was_asked_once(asked, plain_server, connect, monkeypatch):
    questions = []
    once = MasterFinder.answers
    port = plain_server.port

    def answers(finder):
        # Connections that other tests have left may look for their own masters.
        questions.extend([finder] * any(place == port for _, place in finder.question.hosts))
        return once(finder)

    monkeypatch.setattr(MasterFinder, "answers", answers)
    url = f"{asked}://127.0.0.1:{port};localhost:{port}"
    with pytest.raises(errors.TlsFailed, match=r"the port does not speak TLS.* with redisplus "):
        connect(url, socket_connect_timeout=0.5, **({"master_name": "mymaster"} if "sentinel" in asked else {})).open()
    assert len(questions) == 1


@pytest.mark.parametrize("scheme", ["redisplus", "redispluss"])
def test_a_port_that_nobody_serves_or_that_is_silent_is_not_blamed_on_tls(scheme, closed_port, connect):
    with pytest.raises(errors.ServerUnreachable) as caught:
        connect(f"{scheme}://127.0.0.1:{closed_port}").open()
    assert type(caught.value) is errors.ServerUnreachable
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(errors.ServerTimeout):
        connect(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", socket_connect_timeout=0.2).open()


def test_a_port_that_resets_connections_is_not_blamed_on_tls_and_leaves_no_socket_open(connect, monkeypatch):
    def connected_until_the_reset(address):
        sock = socket.create_connection((address.host, address.port))
        poll = select.poll()
        poll.register(sock, select.POLLHUP)
        assert poll.poll(5000)
        return sock

    def reset(listener):
        with suppress(OSError):
            while True:
                with listener.accept()[0] as peer:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    monkeypatch.setattr(tls_mismatch, "_connected", connected_until_the_reset)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=reset, args=(listener,))
        acceptor.start()
        with pytest.raises(errors.ServerUnreachable) as caught:
            connect(f"redisplus://127.0.0.1:{listener.getsockname()[1]}").open()
        assert type(caught.value) is errors.ServerUnreachable
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
    # A socket that is open warns when it is collected, and warnings are errors.
    del caught
    gc.collect()


def test_a_missing_certificate_file_is_named(connect, tmp_path):
    with pytest.raises(errors.InvalidAddress, match=r"ssl_ca_certs=.*no such file"):
        connect(f"redispluss://localhost:1?ssl_ca_certs={tmp_path}/ca.pem").open()
