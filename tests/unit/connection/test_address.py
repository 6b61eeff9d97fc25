"""Addresses: every way to write one, and what is refused, without ever printing a secret."""

from __future__ import annotations

import pickle
import ssl

import pytest
from redis.credentials import UsernamePasswordCredentialProvider

from celery_redis_plus.connection.address import Address, url_options
from celery_redis_plus.errors import InvalidAddress, InvalidArgument

URLS = [
    ("redisplus://", {}),
    ("redisplus://localhost", {"host": "localhost"}),
    ("redisplus://broker.example:7000/5", {"host": "broker.example", "port": 7000, "db": 5}),
    ("redis://localhost/", {"host": "localhost"}),
    ("valkey://localhost//3", {"host": "localhost", "db": 3}),
    ("redisplus://:pass@localhost", {"host": "localhost", "password": "pass"}),
    (
        "redisplus://app:p%40ss%2F%23%3Aword@h/1",
        {"host": "h", "db": 1, "username": "app", "password": "p@ss/#:word"},
    ),
    ("redisplus://app@h", {"host": "h", "username": "app"}),
    ("redisplus://[::1]:6380/2", {"host": "::1", "port": 6380, "db": 2}),
    ("redisplus://h?virtual_host=4", {"host": "h", "db": 4}),
    ("redisplus://h?db=4&visibility_timeout=60", {"host": "h", "db": 4}),
    ("redispluss://h", {"host": "h", "tls": {}}),
    ("rediss://h:6380/1", {"host": "h", "port": 6380, "db": 1, "tls": {}}),
    ("valkeys://h", {"host": "h", "tls": {}}),
    (
        "redispluss://h?ssl_cert_reqs=CERT_REQUIRED&ssl_check_hostname=false&ssl_ca_certs=%2Fetc%2Fca.pem",
        {
            "host": "h",
            "tls": {
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
                "ssl_check_hostname": False,
                "ssl_ca_certs": "/etc/ca.pem",
            },
        },
    ),
    ("redisplus+socket:///run/redis.sock", {"path": "/run/redis.sock"}),
    ("redis+socket:///run/a%20b.sock?virtual_host=3", {"path": "/run/a b.sock", "db": 3}),
    (
        "socket://app:pw@/run/r.sock?db=2",
        {"path": "/run/r.sock", "db": 2, "username": "app", "password": "pw"},
    ),
    ("redisplus+socket:///run/a@b.sock", {"path": "/run/a@b.sock"}),
]


@pytest.mark.parametrize(("url", "expected"), URLS)
def test_a_url_gives_the_address(url, expected):
    assert Address.from_url(url) == Address(**expected)


REFUSED = [
    ("amqp://localhost", "unknown scheme 'amqp'"),
    ("redisplus+tcp://localhost", "unknown scheme"),
    ("localhost:6379", "unknown scheme"),
    ("redisplus://h:70000", "1 to 65535"),
    ("redisplus://h:http", "1 to 65535"),
    ("redisplus://h/celery", "database 'celery' is not allowed"),
    ("redisplus://h/-1", "database '-1' is not allowed"),
    ("redisplus://h/1.5", "database '1.5' is not allowed"),
    ("redispluss://h?ssl_cert_req=none", "did you mean 'ssl_cert_reqs'"),
    ("redispluss://h?ssl_cert_reqs=sometimes", "'required', 'optional' or 'none'"),
    ("redispluss://h?ssl_check_hostname=perhaps", "true or false"),
    ("redispluss+socket:///run/r.sock", "no TLS is possible over the Unix socket"),
    ("redisplus://h?nonsense", "not ?name=value"),
]


@pytest.mark.parametrize(("url", "words"), REFUSED)
def test_a_bad_url_is_refused_with_what_is_wrong(url, words):
    with pytest.raises(InvalidAddress) as caught:
        Address.from_url(url)
    assert words in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("secret", ["se/cret", "se#cret", "se?cret", "12/cret", "12#cret", "12?cret", "12?a=cret", "se]cret"])
def test_a_password_that_is_not_escaped_is_refused_without_printing_any_of_it(secret):
    with pytest.raises(InvalidAddress, match="percent-encoded") as caught:
        Address.from_url(f"redisplus://:{secret}@localhost:6379/0")
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_no_secret_is_printed():
    address = Address.from_url("redispluss://app:s3cret@h/1?ssl_password=key-s3cret")
    assert "s3cret" not in f"{address!r} {address} {address.display()} {address.server}"
    assert address.display() == "redispluss://h:6379/1"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (Address(host="h", db=3), "redisplus://h:6379/3"),
        (Address(host="::1"), "redisplus://[::1]:6379/0"),
        (Address(path="/run/r.sock", db=2), "redisplus+socket:///run/r.sock?virtual_host=2"),
        (Address(host="h", tls={}), "redispluss://h:6379/0"),
    ],
)
def test_an_address_is_shown_as_a_url(address, shown):
    assert address.display() == shown


PARTS = [
    ({}, {}),
    ({"hostname": "h", "port": 7000, "virtual_host": "5"}, {"host": "h", "port": 7000, "db": 5}),
    ({"hostname": "h", "port": "7000", "virtual_host": "/5"}, {"host": "h", "port": 7000, "db": 5}),
    ({"virtual_host": "/"}, {}),
    ({"virtual_host": 0, "port": 0}, {}),
    ({"virtual_host": 7}, {"db": 7}),
    ({"username": "", "password": ""}, {}),
    ({"username": "app", "password": "pw"}, {"username": "app", "password": "pw"}),
    ({"ssl": False}, {}),
    ({"ssl": {}}, {}),
    ({"ssl": True}, {"tls": {}}),
    ({"scheme": "redispluss", "ssl": False}, {"tls": {}}),
    ({"scheme": "valkeys"}, {"tls": {}}),
    ({"scheme": "redispluss", "ssl": {"ssl_check_hostname": False}}, {"tls": {"ssl_check_hostname": False}}),
    ({"scheme": "redisplus", "ssl": False}, {}),
    ({"scheme": "celery_redis_plus.transport:Transport"}, {}),
    ({"scheme": object}, {}),
    (
        {"ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
        {"tls": {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}},
    ),
    ({"ssl": {"cert_reqs": "optional"}}, {"tls": {"ssl_cert_reqs": ssl.CERT_OPTIONAL}}),
    ({"hostname": "socket:///run/r.sock"}, {"path": "/run/r.sock"}),
    (
        {"hostname": "socket:///run/r.sock", "virtual_host": "2", "port": 6379},
        {"path": "/run/r.sock", "db": 2},
    ),
    ({"hostname": "socket:///run/r.sock?virtual_host=0", "virtual_host": "2"}, {"path": "/run/r.sock"}),
    (
        {"hostname": "socket://app:pw@/run/r.sock?virtual_host=3", "username": "x", "password": "y"},
        {"path": "/run/r.sock", "db": 3, "username": "app", "password": "pw"},
    ),
    ({"hostname": "redisplus://h:7000/4", "port": 1}, {"host": "h", "port": 7000, "db": 4}),
]


@pytest.mark.parametrize(("parts", "expected"), PARTS)
def test_the_parts_that_kombu_found_give_the_address(parts, expected):
    assert Address.from_parts(**parts) == Address(**expected)


@pytest.mark.parametrize("virtual_host", ["celery", "-1", -1, "1.5", "²"])
def test_a_virtual_host_that_is_no_database_number_is_refused(virtual_host):
    with pytest.raises(InvalidAddress, match="is not allowed; allowed: a number from 0"):
        Address.from_parts(virtual_host=virtual_host)


@pytest.mark.parametrize("port", [-1, 65536, "http"])
def test_a_bad_port_is_refused(port):
    with pytest.raises(InvalidAddress, match="1 to 65535"):
        Address.from_parts(port=port)


@pytest.mark.parametrize(
    "url",
    [
        "redisplus://app:p%40ss@broker:7000/5",
        "redisplus+socket:///run/r.sock?virtual_host=3",
        "redispluss://h?ssl_check_hostname=false&ssl_cert_reqs=none",
        "redispluss://h/1",
        "redisplus://",
    ],
)
def test_kombus_parts_of_a_url_give_the_same_address_as_the_url(url):
    kombu = pytest.importorskip("kombu")
    pytest.importorskip("celery_redis_plus.transport.url_schemes").register()
    with kombu.Connection(url) as connection:
        parts = Address.from_parts(
            scheme=connection.transport_cls,
            hostname=connection.hostname,
            port=connection.port,
            virtual_host=connection.virtual_host,
            username=connection.userid,
            password=connection.password,
            ssl=connection.ssl,
        )
    assert parts == Address.from_url(url)


def test_a_credential_provider_takes_the_place_of_user_name_and_password():
    provider = UsernamePasswordCredentialProvider("app", "pw")
    address = Address.from_parts(username="x", password="y", credential_provider=provider)
    assert (address.username, address.password) == (None, None)
    assert address.credential_provider is provider


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_credential_provider_can_be_named_in_the_url(separator):
    path = f"redis.credentials{separator}UsernamePasswordCredentialProvider"
    address = Address.from_url(f"redisplus://h?credential_provider={path}")
    assert isinstance(address.credential_provider, UsernamePasswordCredentialProvider)


@pytest.mark.parametrize("given", ["nowhere.Provider", "redis.credentials.Nothing", "Provider", "pathlib.Path", object(), 7])
def test_what_is_no_credential_provider_is_refused(given):
    with pytest.raises(InvalidArgument, match="credential_provider"):
        Address.from_parts(credential_provider=given)


def test_tls_over_a_unix_socket_is_refused_however_the_address_is_made():
    with pytest.raises(InvalidAddress, match="no TLS is possible"):
        Address(path="/run/r.sock", tls={})
    with pytest.raises(InvalidAddress, match="no TLS is possible"):
        Address.from_parts(hostname="socket:///run/r.sock", ssl=True)


def test_transport_options_in_a_url_are_left_to_the_options():
    url = "redispluss://h/1?visibility_timeout=60&ssl_cert_reqs=none&virtual_host=2&global_keyprefix=a%3Ab"
    assert url_options(url) == {"visibility_timeout": "60", "global_keyprefix": "a:b"}


def test_an_address_can_be_a_dictionary_key_and_pickled():
    address = Address.from_url("redispluss://app:pw@h/1?ssl_cert_reqs=none")
    assert {address: 1}[Address.from_url("redispluss://app:pw@h/1?ssl_cert_reqs=none")] == 1
    assert pickle.loads(pickle.dumps(address)) == address
