"""No text for a reader shows a password of a Sentinel URL, or of `sentinel_kwargs`: `inspect stats` sends kombu's info()."""

import copy
import json
import pickle

import pytest
from kombu import Connection

import celery_redis_plus  # noqa: F401 - names the transport

URL = "redisplus+sentinel://app:mas%2Fterpiece@h1:1;h2:2/3?master_name=m&sentinel_username=s&sentinel_password=senti%3Bnel"


def shown(connection):
    """What Celery's `Connection.info` sends: it leaves out the password."""
    info = connection.info()
    info.pop("password")
    return json.dumps(info)


def made(url=URL, **arguments):
    return Connection(url, **arguments)


def through_transport(connection):
    return connection.transport.read_address()


@pytest.mark.parametrize("again", [lambda made: made, copy.copy, lambda made: pickle.loads(pickle.dumps(made))])
def test_info_has_no_secret_and_the_address_has_all(again):
    connection = again(again(made()))
    assert "terpiece" not in shown(connection)
    assert "senti%3Bnel" not in shown(connection)
    assert "app@h1:1,h2:2/3?master_name=m" in shown(connection)
    address = through_transport(connection)
    assert (address.username, address.password, address.db) == ("app", "mas/terpiece", 3)
    assert (address.sentinels.username, address.sentinels.password) == ("s", "senti;nel")
    assert "terpiece" not in connection.as_uri()
    whole = "redisplus+sentinel://app:mas%2Fterpiece@h1:1,h2:2/3?master_name=m&sentinel_username=s&sentinel_password=senti%3Bnel"
    assert connection.as_uri(include_password=True) == whole


@pytest.mark.parametrize("again", [lambda made: made, lambda made: made.clone(), lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("url", ["redisplus+cluster://h1;h2/0?password=sec;ret", "redisplus+cluster://:sec;ret@h1;h2/0"])
def test_copies_of_a_connection_have_its_password(again, url):
    if "?" in url:
        url = url.replace(";ret", "%3Bret")
    connection = made(url)
    assert through_transport(connection).password == "sec;ret"
    copied = through_transport(again(again(connection)))
    assert (copied.password, len(copied.cluster.hosts)) == ("sec;ret", 2)


def test_a_password_beside_the_url_stays_the_masters():
    connection = made("redisplus+sentinel://h1;h2/0?master_name=m&sentinel_password=sentinel", userid="app", password="m@s:ter")
    assert "sentinel_password" not in shown(connection)
    address = through_transport(connection)
    assert (address.username, address.password, address.sentinels.password) == ("app", "m@s:ter", "sentinel")


def test_a_failover_takes_no_secret_along():
    connection = made("redisplus+sentinel://:one@h1?master_name=m&sentinel_password=two;redisplus://h3/0")
    assert through_transport(connection).password == "one"
    connection.maybe_switch_next()
    address = through_transport(connection)
    assert (address.host, address.password, address.sentinels) == ("h3", None, None)


def test_sentinel_kwargs_are_shown_without_secrets_and_used_whole():
    given = {"password": "sentinel-secret", "username": "s", "ssl_password": None, "credential_provider": object()}
    connection = made("redisplus+sentinel://h1;h2/0?master_name=m", transport_options={"sentinel_kwargs": given})
    assert '"sentinel_kwargs": {"password": "**", "username": "s", "ssl_password": null' in shown(connection)
    for copied in (connection, connection.clone(), copy.deepcopy(connection.clone().transport_options)):
        options = copied if isinstance(copied, dict) else copied.transport_options
        assert "sentinel-secret" not in repr(options)
        assert "sentinel-secret" not in json.dumps(options)
    assert connection.clone().transport.read_options().sentinel_kwargs == given


@pytest.mark.parametrize(
    "url",
    [
        "redisplus+sentinel://:SEC/RET@h1:1;h2:2/0?master_name=m",
        "redisplus+sentinel://:SEC?RET@h1:1;h2:2/0?master_name=m",
        "redisplus+sentinel://:SEC;RET@h1:1;h2:2/0?master_name=m",
        "redisplus+sentinel://h1:1;:SEC@h2:2/0?master_name=m",
        "redisplus+sentinel://h1:1;h2:2/0?Sentinel_Password=SEC&master_name=m",
        "redisplus://:SEC@h1/0?sentinel_password=SEC",
        "redisplus://h1/0?Sentinel_Password=SEC",
    ],
)
def test_a_url_that_is_refused_is_printed_without_its_password(url):
    connection = made(url)
    for text in (connection.as_uri(), repr(connection), shown(connection)):
        assert "SEC" not in text
        assert "RET" not in text
