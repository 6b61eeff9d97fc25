"""Sentinels that are cut off, hang or talk nonsense: which answer counts, and how long anybody waits for one."""

import time

import pytest

from celery_redis_plus.connection.address import Address
from celery_redis_plus.connection.command_connection import CommandConnection
from celery_redis_plus.connection.connector import Connector
from celery_redis_plus.errors import AuthenticationFailed, InvalidAddress, MasterNotFound, ServerUnreachable
from celery_redis_plus.options import Options
from celery_redis_plus.testing.server import EmbeddedServer
from tests.integration.sentinel.fake_sentinel import fake_sentinels, url_of
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def old():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="module")
def new():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def sentinels(old):
    with fake_sentinels(3, old.port) as fakes:
        yield fakes


@pytest.fixture
def wire(sentinels):
    opened = []

    def make(query="", **options):
        connector = Connector(
            Address.from_url(url_of(sentinels) + query), Options.from_mapping({"socket_connect_timeout": 1.0, **options})
        )
        opened.append(CommandConnection(connector, "tested", timeout=5.0))
        opened[-1].connect()
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


def promote(sentinels, server):
    for sentinel in sentinels:
        sentinel.master, sentinel.epoch = ("127.0.0.1", server.port), 2


def is_left(connection):
    try:
        connection.command("PING")
    except ServerUnreachable:
        return True
    return False


def moved(sentinels, wire, new):
    """A connection whose process knows the new master, which the first Sentinel does not."""
    connection = wire()
    promote(sentinels[1:], new)
    wait_until(lambda: is_left(connection), 10)
    connection.command("PING")
    assert connection.peer[1] == new.port
    return connection


def test_the_sentinel_that_answered_first_may_be_cut_off(sentinels, wire, new):
    moved(sentinels, wire, new)
    assert sentinels[1].asked


def test_the_failover_after_the_one_that_a_sentinel_leads_is_noticed_as_well(sentinels, wire, old, new):
    connection = wire()
    promote(sentinels, new)
    for sentinel in sentinels:
        # As the leader says it: the new master, and the old one's state with the new one's epoch.
        sentinel.told = ("127.0.0.1", old.port)
    wait_until(lambda: is_left(connection), 10)
    connection.command("PING")
    assert connection.peer[1] == new.port
    for sentinel in sentinels:
        sentinel.master, sentinel.told, sentinel.epoch = ("127.0.0.1", old.port), None, 3
    wait_until(lambda: is_left(connection), 10)


def test_a_promotion_between_two_questions_is_no_epoch_of_the_old_master(sentinels, wire, new):
    for sentinel in sentinels:
        sentinel.successor = (("127.0.0.1", new.port), 2)
    assert wire().peer[1] == new.port


def test_nobody_goes_back_to_a_master_of_an_older_configuration(sentinels, wire, new):
    moved(sentinels, wire, new)
    for sentinel in sentinels[1:]:
        sentinel.mode = "close"
    with pytest.raises(MasterNotFound, match="another Sentinel has named a newer one"):
        wire()
    for sentinel in sentinels[1:]:
        sentinel.mode = "ok"
    assert wire().peer[1] == new.port


def test_sentinels_that_were_set_up_anew_count_from_zero(sentinels, wire, old, new):
    moved(sentinels, wire, new)
    for sentinel in sentinels:
        sentinel.master, sentinel.epoch = ("127.0.0.1", old.port), 0
    assert wire().peer[1] == old.port


def test_hanging_sentinels_hold_up_no_client_of_a_master_that_works(sentinels, wire):
    connection = wire()
    for sentinel in sentinels:
        sentinel.mode = "hang"
    began = time.monotonic()
    longest = 0.0
    while time.monotonic() - began < 4:
        before = time.monotonic()
        connection.command("PING")
        longest = max(longest, time.monotonic() - before)
        time.sleep(0.01)
    # One answer of a Sentinel would take a second.
    assert longest < 0.8


@pytest.mark.parametrize(
    ("name", "value"), [("master", ("127.0.0.1", "abc")), ("master", ("127.0.0.1", 99999)), ("master", ("", 1)), ("epoch", "abc")]
)
def test_nonsense_is_no_answer(sentinels, wire, old, name, value):
    setattr(sentinels[0], name, value)
    assert wire().peer[1] == old.port
    for sentinel in sentinels[1:]:
        setattr(sentinel, name, value)
    with pytest.raises(MasterNotFound, match=r"its answer cannot be read|names a server that cannot be"):
        wire(socket_connect_timeout=0.2)


def test_a_server_that_refuses_is_left_for_the_one_that_another_sentinel_names(sentinels, wire, old):
    with EmbeddedServer(config={"requirepass": "other"}) as locked:
        sentinels[0].master = ("127.0.0.1", locked.port)
        assert wire().peer[1] == old.port
        for sentinel in sentinels:
            sentinel.master = ("127.0.0.1", locked.port)
        with pytest.raises(AuthenticationFailed):
            wire(client_name="another")


def test_a_missing_tls_file_is_an_invalid_address(wire):
    with pytest.raises(InvalidAddress, match="no such file"):
        wire(sentinel_kwargs={"ssl_ca_certs": "/does/not/exist"})
