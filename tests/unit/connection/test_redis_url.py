"""`redis_url`: a broker's URL as redis-py reads it."""

from __future__ import annotations

import pytest
import redis

from celery_redis_plus import redis_url
from celery_redis_plus.errors import InvalidAddress


@pytest.mark.parametrize(
    ("broker_url", "expected"),
    [
        ("redisplus://", "redis://127.0.0.1:6379/0"),
        ("redisplus://host:7000/3?visibility_timeout=60&global_keyprefix=shop%3A", "redis://host:7000/3"),
        ("valkey://host", "redis://host:6379/0"),
        ("redisplus://:p%40ss%2Fword@host", "redis://:p%40ss%2Fword@host:6379/0"),
        ("redisplus://app:secret@[::1]:7000", "redis://app:secret@[::1]:7000/0"),
        ("redispluss://host?ssl_ca_certs=/etc/ca.pem&prefetch=1", "rediss://host:6379/0?ssl_ca_certs=%2Fetc%2Fca.pem"),
        ("redispluss://host?ssl_cert_reqs=CERT_NONE", "rediss://host:6379/0?ssl_cert_reqs=none&ssl_check_hostname=false"),
        ("redisplus+socket://app:secret@/run/valkey.sock?virtual_host=2", "unix://app:secret@/run/valkey.sock?db=2"),
    ],
)
def test_user_database_and_tls_stay_and_transport_options_go(broker_url, expected):
    assert redis_url(broker_url) == expected
    with redis.Redis.from_url(expected) as client:
        arguments = client.connection_pool.connection_kwargs
    assert arguments.get("password") in {None, "secret", "p@ss/word"}
    assert arguments.get("db", 0) == int(expected.partition("?db=")[2] or expected.partition("?")[0].rpartition("/")[2])


@pytest.mark.parametrize(
    ("broker_url", "what"),
    [
        ("redisplus+sentinel://one;two/0?master_name=m", "Sentinels"),
        ("redisplus+cluster://one;two/0", "a Redis Cluster"),
        ("redispluss://host?ssl_min_version=TLSv1_3", "ssl_min_version"),
        ("amqp://host", "unknown scheme"),
        (None, "broker_url is None; allowed is the text of one URL"),
        (["redisplus://host"], "allowed is the text of one URL"),
    ],
)
def test_what_has_no_such_form_is_refused(broker_url, what):
    with pytest.raises(InvalidAddress, match=what):
        redis_url(broker_url)
