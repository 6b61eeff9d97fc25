"""Addresses with Sentinels: what stands in the URL, what the options add, and what is never shown."""

import pytest

from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.errors import InvalidAddress
from celery_redis_plus.transport.url_sentinels import joined, masked, merged

URL = "redisplus+sentinel://app:m%3Bsecret@h1:1;[::1]:2,h3/4?master_name=m&sentinel_password=s-secret&visibility_timeout=9"


def test_hosts_database_and_credentials_are_read():
    address = Address.from_url(URL)
    assert address.sentinels.hosts == (("h1", 1), ("::1", 2), ("h3", 26379))
    assert (address.db, address.username, address.password) == (4, "app", "m;secret")
    assert (address.sentinels.master_name, address.sentinels.password) == ("m", "s-secret")
    assert address.display() == "redisplus+sentinel://h1:1,[::1]:2,h3:26379/4?master_name=m"
    assert address.at_master("10.0.0.1", 6379).display().endswith("?master_name=m (master 10.0.0.1:6379)")


def test_what_is_displayed_can_be_read_again():
    address = Address.from_url(Address.from_url(URL).display())
    assert address.sentinels.hosts == Address.from_url(URL).sentinels.hosts


def test_transport_options_in_the_query_are_told_from_those_of_the_sentinels():
    assert url_options(URL) == {"visibility_timeout": "9"}
    # Without Sentinels they are options that the connection then refuses.
    assert url_options("redisplus://h/0?master_name=m") == {"master_name": "m"}


@pytest.mark.parametrize(
    ("url", "kwargs", "master", "sentinels"),
    [
        ("redisplus+sentinel://h?master_name=m", {}, False, False),
        ("redispluss+sentinel://h?master_name=m", {}, True, True),
        ("redispluss+sentinel://h?master_name=m", {"ssl": False}, True, False),
        ("redisplus+sentinel://h?master_name=m", {"ssl": True}, False, True),
        ("redisplus+sentinel://h?master_name=m", {"ssl_ca_certs": "/ca"}, False, True),
        ("redisplus+sentinel://h?master_name=m&ssl_ca_certs=/ca", {}, True, False),
    ],
)
def test_tls_of_master_and_sentinels(url, kwargs, master, sentinels):
    address = Address.from_url(url)
    completed = address.sentinels.completed(None, kwargs, 0)
    assert (address.tls is not None, completed.tls is not None) == (master, sentinels)
    if "ssl_ca_certs" in kwargs:
        assert completed.tls == kwargs


def test_kombu_s_host_name_and_scheme_give_the_same_address():
    parts = Address.from_parts(hostname=URL.partition("+")[2], scheme="redispluss")
    assert parts == Address.from_url(URL.replace("redisplus+", "redispluss+"))


@pytest.mark.parametrize(
    "url",
    [
        "redisplus+sentinel:///0?master_name=m",
        "redisplus+sentinel://h1;;h2/0",
        "redisplus+sentinel://h:0/0",
        "redisplus+sentinel://h:99999/0",
        "redisplus+sentinel://:sec;ret@x@h:1#/0",
        "redisplus+sentinel://:secret/x@h:1/0",
        "redisplus+sentinel://h/0?min_other_sentinels=two",
        "amqp+sentinel://:secret@h/0",
    ],
)
def test_a_bad_url_is_refused_without_showing_it(url):
    with pytest.raises(InvalidAddress) as refused:
        Address.from_url(url)
    assert "secret" not in str(refused.value)
    assert "ret@" not in str(refused.value)


def test_pieces_that_kombu_has_split_are_joined():
    pieces = ["redisplus+sentinel://h1:1", "h2/0?master_name=m", "redisplus://h", "h4"]
    assert joined(pieces) == ["redisplus+sentinel://h1:1,h2/0?master_name=m", "redisplus://h", "h4"]


def test_kombu_s_list_becomes_one_url_at_its_first_place():
    assert merged(["redis://a", "sentinel://h1/1", "redis://b", "sentinel://:pw@h2:2"]) == [
        "redis://a",
        "sentinel://:pw@h1,h2:2/1",
        "redis://b",
    ]


def test_every_password_is_masked():
    assert masked(URL, "**") == (
        "redisplus+sentinel://app:**@h1:1;[::1]:2,h3/4?master_name=m&sentinel_password=**&visibility_timeout=9"
    )
