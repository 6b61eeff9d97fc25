import socket
import threading

import pytest

from tests.support.proxy import HOST, RESET, Proxy
from tests.support.waiting import wait_until


@pytest.fixture
def echo():
    """A server that answers with what it was sent, and lists it."""
    seen = bytearray()
    listener = socket.create_server((HOST, 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while True:
                    try:
                        data = connection.recv(1000)
                        seen.extend(data)
                        connection.sendall(data)
                    except OSError:
                        break
                    if not data:
                        break

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1], seen
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


@pytest.fixture
def proxy(echo):
    with Proxy(lambda: echo[0]) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with socket.create_connection((HOST, proxy.port), timeout=10) as client:
        yield client


def has_ended(client):
    """Whether the next thing that a client hears is the end."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_bytes_pass_both_ways(client):
    client.sendall(b"hello")
    assert client.recv(100) == b"hello"


def test_a_blackhole_holds_back_and_lets_everything_through_later(proxy, echo, client):
    client.sendall(b"a")
    assert client.recv(100) == b"a"
    proxy.blackhole()
    client.sendall(b"b")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert bytes(echo[1]) == b"a"
    proxy.heal()
    client.settimeout(10)
    assert client.recv(100) == b"b"


def test_what_a_killed_client_had_sent_arrives_all_the_same(proxy, echo, client):
    """As in a real network: it had left the client. Its kernel resets the connection when there is something unread."""
    client.sendall(b"a")
    assert client.recv(100) == b"a"
    proxy.blackhole()
    for number, piece in enumerate((b"b", b"c", b"d"), 2):
        client.sendall(piece)
        # In pieces: the first one waits for better weather, the others behind it.
        wait_until(lambda number=number: proxy.heard == number)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    proxy.heal()
    wait_until(lambda: bytes(echo[1]) == b"abcd")


@pytest.mark.parametrize("commands", [True, False], ids=["commands", "replies"])
def test_one_direction_is_held_back_and_passes_later(commands, proxy, echo, client):
    proxy.one_way(commands=commands)
    client.sendall(b"slow")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    assert bytes(echo[1]) == (b"" if commands else b"slow")
    proxy.heal()
    client.settimeout(10)
    assert client.recv(100) == b"slow"


def test_lost_replies_are_gone_though_the_server_has_heard(proxy, echo, client):
    proxy.lose_replies()
    client.sendall(b"a")
    wait_until(lambda: bytes(echo[1]) == b"a")
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_a_piece_is_cut_in_its_middle_and_its_connection_ends(proxy, echo, client):
    client.sendall(b"whole")
    assert client.recv(100) == b"whole"
    proxy.cut()
    client.sendall(b"0123456789")
    wait_until(lambda: has_ended(client))
    wait_until(lambda: bytes(echo[1]) == b"whole01234")
    proxy.heal()
    with socket.create_connection((HOST, proxy.port), timeout=10) as other:
        other.sendall(b"again")
        assert other.recv(100) == b"again"


def test_who_is_refused_sees_a_reset(proxy, client):
    client.sendall(b"a")
    assert client.recv(100) == b"a"
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionResetError), socket.create_connection((HOST, proxy.port), timeout=10) as other:
        other.recv(100)
    wait_until(lambda: proxy.connections == 0)


@pytest.mark.parametrize("bad", [lambda proxy: proxy.slow(1000), lambda proxy: proxy.delay(0.1)], ids=["slow", "delayed"])
def test_bytes_take_longer_and_arrive_all_the_same(bad, proxy, client):
    bad(proxy)
    client.sendall(b"x" * 100)
    received = b""
    while len(received) < 100:
        received += client.recv(100)
    assert received == b"x" * 100
