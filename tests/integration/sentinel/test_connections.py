"""Connections by Sentinels: the master is found, and found again; what stops that is named."""

import logging
import time

import pytest

from celery_redis_plus.connection.blocking_connection import BlockingConnection
from celery_redis_plus.errors import AuthenticationFailed, InvalidAddress, MasterNotFound, ServerUnreachable
from tests.support.connections import opened_connections
from tests.support.machine_time import machine_time
from tests.support.sentinels import MASTER_NAME, sentinel_deployment
from tests.support.waiting import wait_until

PASSWORD, SENTINEL_PASSWORD = "master-secret", "sentinel-secret"


@pytest.fixture
def open_wire():
    with opened_connections() as opened:
        yield opened


def test_a_connection_leads_to_the_master(deployment, open_wire):
    wire = open_wire(deployment.url(db=3))
    assert wire.command("ROLE")[0] == b"master"
    assert wire.peer == ("127.0.0.1", deployment.master.port)
    assert b"db=3" in wire.command("CLIENT", "LIST", "ID", wire.command("CLIENT", "ID"))


@pytest.mark.parametrize("separator", [";", ","])
def test_sentinels_that_do_not_run_are_passed_over(deployment, open_wire, closed_port, separator):
    hosts = separator.join((f"127.0.0.1:{closed_port}", f"127.0.0.1:{deployment.sentinels[2].port}"))
    wire = open_wire(f"redisplus+sentinel://{hosts}/0?master_name={MASTER_NAME}")
    assert wire.command("PING") == b"PONG"


def test_options_name_the_master_as_well_as_the_url(deployment, open_wire):
    url = deployment.url().partition("?")[0]
    assert open_wire(url, master_name=MASTER_NAME, min_other_sentinels=2).command("PING") == b"PONG"


def test_without_the_name_of_the_master_the_error_says_where_it_goes(deployment, open_wire):
    with pytest.raises(InvalidAddress, match=r"the name of the master is missing.*option master_name"):
        open_wire(deployment.url().partition("?")[0])


def test_an_unknown_name_is_told_at_once_with_the_sentinels_asked(deployment, open_wire):
    began = machine_time()
    with pytest.raises(MasterNotFound) as caught:
        open_wire(deployment.url(master_name="other"))
    assert machine_time() - began < 2
    for sentinel in deployment.sentinels:
        assert f"127.0.0.1:{sentinel.port}: it watches no master named 'other'" in str(caught.value)
    assert "check master_name" in str(caught.value)


def test_no_sentinel_that_runs_is_an_error_after_the_connect_timeout(open_wire, closed_port):
    began, by_machine = time.monotonic(), machine_time()
    with pytest.raises(MasterNotFound, match=rf"Asked: 127\.0\.0\.1:{closed_port}: .*refused"):
        open_wire(f"redisplus+sentinel://127.0.0.1:{closed_port}/0?master_name=m", socket_connect_timeout=0.5)
    assert time.monotonic() - began > 0.3
    assert machine_time() - by_machine < 2


def test_a_server_that_is_no_sentinel_is_named(deployment, open_wire):
    with pytest.raises(MasterNotFound, match="it is no Sentinel"):
        open_wire(f"redisplus+sentinel://127.0.0.1:{deployment.master.port}/0?master_name=m", socket_connect_timeout=0.2)


def test_a_sentinel_that_knows_too_few_others_does_not_count(deployment, open_wire):
    with pytest.raises(MasterNotFound, match="it knows 2 other Sentinels; min_other_sentinels is 3"):
        open_wire(deployment.url(min_other_sentinels=3), socket_connect_timeout=0.2)


def test_sentinel_options_without_sentinels_are_refused(deployment, open_wire):
    with pytest.raises(InvalidAddress, match="master_name need the address of Sentinels"):
        open_wire(deployment.master.url(), master_name="m")


def test_unknown_sentinel_kwargs_are_refused(deployment, open_wire):
    with pytest.raises(InvalidAddress, match=r"unknown name 'pasword'; allowed: .*password"):
        open_wire(deployment.url(), sentinel_kwargs={"pasword": "x"})


def test_a_failover_moves_connections_that_are_used_and_those_that_wait(deployment, open_wire, caplog):
    used, waiting = open_wire(deployment.url()), open_wire(deployment.url(), BlockingConnection)
    waiting.start("BZMPOP", 0, 1, "nothing", "MIN")
    old = deployment.failover()
    # The old master still takes commands: nothing but the Sentinels says that its time is over.
    with pytest.raises(ServerUnreachable, match="the master 'mymaster' is another server by now"):
        wait_until(lambda: used.command("PING") != b"PONG", 5)
    with pytest.raises(ServerUnreachable):
        waiting.check_master()
    with caplog.at_level(logging.INFO, logger="celery_redis_plus"):
        assert used.command("ROLE")[0] == b"master"
    assert used.peer[1] not in {old.port, 0}
    assert not used.connector.finder.has_moved(*used.peer)
    deployment.wait_until_whole()


def test_a_killed_master_is_replaced_within_one_attempt_to_connect(deployment, open_wire):
    wire = open_wire(deployment.url())
    deployment.kill_master()
    with pytest.raises(ServerUnreachable):
        wait_until(lambda: wire.command("PING") != b"PONG", 5)
    assert wire.command("SET", "key", "value") == b"OK"
    deployment.wait_until_whole()


@pytest.fixture(scope="module")
def guarded():
    """A master and Sentinels with passwords of their own."""
    lines = {"requirepass": SENTINEL_PASSWORD, "sentinel auth-pass": f"{MASTER_NAME} {PASSWORD}"}
    with sentinel_deployment(replicas=0, sentinels=1, config={"requirepass": PASSWORD}, sentinel_config=lines) as deployment:
        yield deployment


@pytest.mark.parametrize("place", ["url", "option"])
def test_master_and_sentinels_have_passwords_of_their_own(guarded, open_wire, place):
    query = {"sentinel_password": SENTINEL_PASSWORD} if place == "url" else {}
    options = {"sentinel_kwargs": {"password": SENTINEL_PASSWORD}} if place == "option" else {}
    wire = open_wire(guarded.url(user=f":{PASSWORD}@", **query), **options)
    assert wire.command("PING") == b"PONG"
    address = wire.connector.address
    for text in (repr(address), address.display(), str(wire.connector.options)):
        assert "secret" not in text


@pytest.mark.parametrize(
    ("user", "sentinel", "kind"),
    [(":wrong-secret@", SENTINEL_PASSWORD, AuthenticationFailed), (f":{PASSWORD}@", "wrong-secret", MasterNotFound)],
)
def test_a_wrong_password_is_told_without_showing_one(guarded, open_wire, user, sentinel, kind):
    with pytest.raises(kind, match="password") as caught:
        open_wire(guarded.url(user=user, sentinel_password=sentinel), socket_connect_timeout=0.3)
    assert "secret" not in str(caught.value)
