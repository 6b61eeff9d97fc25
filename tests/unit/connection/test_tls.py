"""TLS arguments: every way to write them becomes what redis-py takes."""

from __future__ import annotations

import inspect
import ssl

import pytest
from redis.connection import SSLConnection

from celery_redis_plus.connection.tls import check_files, completed_tls, tls_arguments
from celery_redis_plus.errors import InvalidAddress


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("required", ssl.CERT_REQUIRED),
        ("CERT_OPTIONAL", ssl.CERT_OPTIONAL),
        ("none", ssl.CERT_NONE),
        (None, ssl.CERT_NONE),
        (ssl.CERT_REQUIRED, ssl.CERT_REQUIRED),
        (0, ssl.CERT_NONE),
        ("0", None),
        (7, None),
    ],
)
def test_cert_reqs_is_understood_in_every_spelling(given, mode):
    if mode is None:
        with pytest.raises(InvalidAddress, match="ssl_cert_reqs"):
            tls_arguments({"ssl_cert_reqs": given})
    else:
        assert tls_arguments({"ssl_cert_reqs": given})["ssl_cert_reqs"] is mode


def test_without_a_checked_certificate_no_host_name_is_checked():
    given = {"ssl_cert_reqs": "none", "ssl_check_hostname": True}
    assert tls_arguments(given)["ssl_check_hostname"] is False


def test_true_is_tls_with_redis_pys_defaults_which_check_the_certificate():
    assert tls_arguments(True) == {}
    default = inspect.signature(SSLConnection.__init__).parameters["ssl_cert_reqs"].default
    assert default == "required"


def test_amqp_spelling_without_the_prefix_is_understood():
    assert tls_arguments({"ca_certs": "/ca.pem", "certfile": "/cert.pem", "keyfile": "/key.pem"}) == {
        "ssl_ca_certs": "/ca.pem",
        "ssl_certfile": "/cert.pem",
        "ssl_keyfile": "/key.pem",
    }


def test_the_minimum_version_can_be_a_name():
    assert tls_arguments({"ssl_min_version": "TLSv1_3"}) == {"ssl_min_version": ssl.TLSVersion.TLSv1_3}
    with pytest.raises(InvalidAddress, match="TLSv1_2 or TLSv1_3"):
        tls_arguments({"ssl_min_version": "1.3"})


def test_a_missing_certificate_is_named_before_anything_is_connected(tmp_path):
    with pytest.raises(InvalidAddress, match=r"ssl_ca_certs='.*ca.pem': no such file"):
        check_files({"ssl_ca_certs": str(tmp_path / "ca.pem")})
    check_files({"ssl_ca_path": str(tmp_path), "ssl_keyfile": None})


def test_a_key_without_its_certificate_is_refused():
    with pytest.raises(InvalidAddress, match="ssl_keyfile needs ssl_certfile"):
        tls_arguments({"keyfile": "client.key"})


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        (None, None, None),
        (None, {}, None),
        (None, True, {}),
        (None, {"ca_certs": "a"}, {"ssl_ca_certs": "a"}),
        ({}, True, {}),
        ({"ssl_ca_certs": "a"}, True, {"ssl_ca_certs": "a"}),
        ({"ssl_ca_certs": "a"}, {"ca_certs": "b", "ssl_ca_path": "c"}, {"ssl_ca_certs": "a", "ssl_ca_path": "c"}),
        ({"ssl_cert_reqs": ssl.CERT_REQUIRED}, {"cert_reqs": "none"}, {"ssl_cert_reqs": ssl.CERT_REQUIRED}),
    ],
)
def test_arguments_are_completed_by_others(first, given, expected):
    assert completed_tls(first, given) == expected
