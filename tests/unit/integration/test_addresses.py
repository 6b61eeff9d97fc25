import pytest

from celery_redis_plus.integration.broker_urls import has_dotted_url, our_transport, our_urls, scheme_of
from celery_redis_plus.transport import Transport
from celery_redis_plus.transport.url_aliases import our_url


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("redis://", "redisplus://"),
        ("redis://h:1/2?visibility_timeout=9", "redisplus://h:1/2?visibility_timeout=9"),
        ("rediss://:pw@h/0", "redispluss://:pw@h/0"),
        ("valkey://h", "redisplus://h"),
        ("valkeys://h", "redispluss://h"),
        ("redisplus://h", "redisplus://h"),
        ("redispluss://h", "redispluss://h"),
        ("redis+socket:///run/redis.sock?virtual_host=1", "redisplus+socket:///run/redis.sock?virtual_host=1"),
        ("celery_redis_plus:Transport://h", "redisplus://h"),
        ("celery_redis_plus.transport:Transport://u:p@h:1/2", "redisplus://u:p@h:1/2"),
        ("celery_redis_plus.transport.transport:Transport://h", "redisplus://h"),
        (" redis://h", "redisplus://h"),
        ("amqp://h", "amqp://h"),
        ("sentinel://h", "redisplus+sentinel://h"),
        ("Sentinel://:p@h:1/2", "redisplus+sentinel://:p@h:1/2"),
        ("rediss+Sentinel://h;k/0?master_name=m", "redispluss+sentinel://h;k/0?master_name=m"),
        ("valkey+sentinel://h", "redisplus+sentinel://h"),
        ("memory://", "memory://"),
        ("h:6379", "h:6379"),
        ("", ""),
        ("Redis://h", "redisplus://h"),
        ("REDISS+socket:///x ", "redispluss+socket:///x"),
    ],
)
def test_url_of_redis_or_of_our_transport_gets_our_scheme(url, ours):
    assert our_url(url) == ours


def test_password_that_looks_like_a_url_is_left_alone():
    assert our_url("redis://:redis%3A%2F%2Fx@h") == "redisplus://:redis%3A%2F%2Fx@h"


@pytest.mark.parametrize(
    ("urls", "ours"),
    [
        (None, None),
        ("redis://a;amqp://b;rediss://c", "redisplus://a;amqp://b;redispluss://c"),
        (["redis://a", "redisplus://b"], ["redisplus://a", "redisplus://b"]),
        (("redis://a;redis://b",), ["redisplus://a;redisplus://b"]),
        ("rediss://a; REDISS://b ;", "redispluss://a;redispluss://b"),
        # Sentinels in one URL, in kombu's form, and both among others.
        ("redis+sentinel://a:1;b:2/0?master_name=m", "redisplus+sentinel://a:1,b:2/0?master_name=m"),
        ("redis+sentinel://a;b/0?master_name=m;redis://c", "redisplus+sentinel://a,b/0?master_name=m;redisplus://c"),
        ("sentinel://:p@a:1/2;sentinel://:p@b/2", "redisplus+sentinel://:p@a:1,b/2"),
        (["sentinel://a", "redis://c", "sentinel://b/3"], ["redisplus+sentinel://a,b/3", "redisplus://c"]),
        (["sentinel://a;sentinel://b", "sentinel://c"], ["redisplus+sentinel://a,b,c/"]),
    ],
)
def test_every_url_of_a_failover_setting_is_turned(urls, ours):
    assert our_urls(urls) == ours


@pytest.mark.parametrize(
    ("transport", "ours"),
    [
        (None, None),
        ("celery_redis_plus.transport:Transport", "redisplus"),
        ("celery_redis_plus:Transport", "redisplus"),
        ("redis", "redisplus"),
        ("rediss", "redispluss"),
        ("amqp", "amqp"),
        ("Redis", "redisplus"),
        (Transport, "redisplus"),
        (dict, dict),
    ],
)
def test_transport_setting_becomes_our_scheme(transport, ours):
    assert our_transport(transport) == ours


@pytest.mark.parametrize(
    ("urls", "scheme"),
    [
        (None, None),
        ([], None),
        ("h", None),
        ("amqp://h;redisplus://h", None),
        ("redispluss://h", "redispluss"),
        (["redisplus+socket:///x"], "redisplus"),
    ],
)
def test_first_url_says_which_scheme_it_is(urls, scheme):
    assert scheme_of(urls) == scheme


def test_url_with_an_import_path_is_recognised_wherever_it_stands():
    dotted = "celery_redis_plus.transport:Transport://h"

    assert has_dotted_url(dotted)
    assert has_dotted_url(f"redis://a;{dotted}")
    assert has_dotted_url(["redis://a", dotted])
    assert not has_dotted_url("redis://a")
    assert not has_dotted_url(None)
