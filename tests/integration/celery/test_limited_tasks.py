"""A task's `rate_limit` with a limiter's name in it, its key and its cost."""

from __future__ import annotations

from uuid import UUID

import pytest

from celery_redis_plus import configure_app
from celery_redis_plus.errors import InvalidArgument, OptionError


def headers(redis_client):
    """Return what waits in the queue `celery`, each by the limiter that it has."""
    tags = redis_client.zrange("queue:{celery}", 0, -1)
    return [(redis_client.hget(b"message:{celery}:" + tag, "limiter") or b"").decode() for tag in tags]


def test_a_task_names_limiter_key_and_cost(celery_app, redis_client):
    app = celery_app("configured")

    @app.task(
        name="c.charge",
        shared=False,
        rate_limit="stripe:100/s burst=20",
        limit_key=["account"],
        limit_cost=lambda account, n=1: n,
    )
    def charge(account, n=1):
        """Do nothing."""

    charge.delay("c7")
    charge.delay("c8", n=5)
    (charge.si("c9") | charge.si("after")).apply_async()
    charge.apply_async(("c1",), headers={"x-limiter": "own:1/s"})

    assert headers(redis_client) == [
        "stripe:100/s burst=20 key=c7",
        "stripe:100/s burst=20 cost=5 key=c8",
        "stripe:100/s burst=20 key=c9",
        "own:1/s",
    ]
    assert charge.rate_limit is None
    with pytest.raises(InvalidArgument, match=r"cost 21 of limiter 'stripe', whose bucket holds 20; allowed is at most that"):
        charge.delay("c7", n=21)


def test_keys_are_arguments_of_any_kind_and_none_is_no_key(celery_app, redis_client):
    app = celery_app("configured")
    one = UUID(int=1)

    @app.task(name="c.charge", shared=False, serializer="json", rate_limit="stripe:100/s", limit_key=["account"])
    def charge(account, part=None):
        """Do nothing."""

    @app.task(name="c.part", shared=False, rate_limit="stripe:100/s", limit_key=["account", "part"])
    def charge_part(account, part=None):
        """Do nothing."""

    charge.delay(None)
    charge.delay(one)
    charge_part.delay("a/b", "c")
    charge_part.delay("a", "b/c")
    keys = [header.partition("key=")[2] for header in headers(redis_client)]
    assert keys == ["", str(one), "a%2Fb/c", "a/b%2Fc"]


def test_a_rule_may_stand_in_configure_app_and_celerys_own_rates_stay(celery_app, redis_client):
    app = celery_app("configured")
    configure_app(app, limiters={"gpu": "concurrency=2"})

    @app.task(name="c.a", shared=False, rate_limit="gpu", limit_key=lambda x: None if x == 1 else x)
    def by_name(x):
        """Do nothing."""

    @app.task(name="c.b", shared=False, rate_limit="10/m")
    def celerys():
        """Do nothing."""

    by_name.delay(1)
    by_name.delay(2)
    celerys.delay()
    assert headers(redis_client) == ["gpu:concurrency=2", "gpu:concurrency=2 key=2", ""]
    assert celerys.rate_limit == "10/m"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate_limit": "stripe:fast"}, r"option rate_limit of task 'c.x': 'fast' in limiter 'stripe:fast'; allowed"),
        ({"rate_limit": "a:1/s", "limit_key": ["nobody"]}, r"option limit_key of task 'c.x' is \['nobody'\]; allowed: .*x"),
        ({"rate_limit": "a:1/s", "limit_cost": 0}, r"option rate_limit of task 'c.x': cost 0 of limiter 'a'; allowed"),
        ({"rate_limit": "1/s", "limit_key": ["x"]}, r"option limit_key of task 'c.x' without a limiter; allowed"),
    ],
)
def test_what_is_not_allowed_names_option_and_value(options, text, celery_app):
    app = celery_app("configured")
    app.finalize()
    with pytest.raises(OptionError, match=text):

        @app.task(name="c.x", shared=False, **options)
        def task(x):
            """Do nothing."""
