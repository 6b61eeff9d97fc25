import logging
import pickle
import subprocess
import sys

import click
import pytest
from celery import Celery

from celery_redis_plus import configure_app
from celery_redis_plus.errors import InvalidAddress, OptionError
from celery_redis_plus.integration.bootstep import STEP
from celery_redis_plus.integration.configure import FIXUP

DOTTED = "celery_redis_plus.transport:Transport"


def make(**settings):
    app = Celery("unit", set_as_current=False)
    app.config_from_object(settings)
    return app


def test_app_is_returned_and_configured_once():
    app = make(broker_url="redis://h")

    assert configure_app(app) is app
    connection = vars(app)["_connection"]
    assert configure_app(app) is app
    assert vars(app)["_connection"] is connection
    assert app.steps["consumer"] == {STEP}
    assert FIXUP in app.fixups


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("accept", 5, "a mapping"),
        ("queue_ack_policies", ["ack_first"], "a mapping"),
        ("limiters", "api:10/s", "a mapping"),
        ("revoke_removes", "no", "True or False"),
        ("group_of", 3, "a function"),
    ],
)
def test_an_argument_of_another_kind_is_refused(name, value, allowed):
    with pytest.raises(OptionError, match=f"configure_app: {name} is .*; allowed is {allowed}"):
        configure_app(make(broker_url="redis://h"), **{name: value})


def test_what_is_no_app_is_refused():
    with pytest.raises(OptionError, match="configure_app: app is 'shop'; allowed is a Celery app"):
        configure_app("shop")


@pytest.mark.parametrize("before", [True, False])
def test_settings_of_the_user_hold_whenever_they_come(before):
    app = Celery("unit", set_as_current=False)
    if before:
        configure_app(app)
    app.config_from_object({"broker_url": "redis://h:1/2", "broker_transport_options": {"visibility_timeout": 9}})
    if not before:
        configure_app(app)
    connection = app.connection_for_write()

    assert connection.transport_cls == "redisplus"
    assert (connection.hostname, connection.port, connection.virtual_host) == ("h", 1, "2")
    assert connection.transport_options == {"visibility_timeout": 9}
    assert app.conf.broker_url == "redis://h:1/2"


def test_url_that_is_set_later_counts_too():
    app = configure_app(make(broker_url="redis://h"))
    app.connection_for_write()
    app.conf.broker_url = "rediss://other"
    connection = app.connection_for_write()

    assert (connection.transport_cls, connection.hostname) == ("redispluss", "other")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"broker_url": "memory://"}, "memory"),
        ({"broker_url": "amqp://a;amqp://b"}, "amqp"),
        ({"broker_url": "filesystem://", "broker_transport": "memory"}, "memory"),
        ({"broker_url": None}, "amqp"),
    ],
)
def test_broker_of_another_kind_is_used_and_named_once_in_a_warning(settings, name, caplog):
    app = configure_app(make(**settings))

    assert app.connection_for_write().transport_cls == name
    app.connection_for_read()
    (message,) = caplog.messages
    assert f"its broker is {name!r}" in message
    assert "'unit'" in message
    assert "redisplus://" in message


OTHER = "azurestoragequeues://:secret@h"

UNSUPPORTED = {
    "mixed": {"broker_url": f"redis://:secret@h;{OTHER}"},
    "unknown suffix": {"broker_url": "redis+master://:secret@h"},
    "mixed with amqp": {"broker_url": ["redis://:secret@h", "amqp://:secret@b"]},
    "mixed the other way": {"broker_url": "amqp://:secret@b;redisplus://h"},
    "mixed behind the setting": {"broker_url": "redis://:secret@h;amqp://b", "broker_transport": DOTTED},
    "setting": {"broker_url": "redis://:secret@h", "broker_transport": "sentinel"},
    "kombu's path": {"broker_url": "redis://:secret@h", "broker_transport": "kombu.transport.redis:Transport"},
}


@pytest.mark.parametrize("settings", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_transport_of_kombu_for_redis_is_refused_and_no_secret_shown(settings):
    app = configure_app(make(**settings))
    with pytest.raises(InvalidAddress, match="allowed in an app with configure_app: redisplus://") as refused:
        app.connection_for_write()

    assert "secret" not in str(refused.value)


def test_every_way_to_a_connection_is_checked(monkeypatch):
    two = f"{OTHER};redis://h"
    app = configure_app(make(broker_read_url=two, broker_write_url="redis://h"))
    with pytest.raises(InvalidAddress, match="a failover would leave it"):
        app.connection_for_read()
    app.connection_for_write()
    with pytest.raises(InvalidAddress):
        app.connection(two)
    with pytest.raises(InvalidAddress):
        configure_app(make(broker_write_url=two, broker_read_url="redis://h")).producer_pool  # noqa: B018 - a property
    monkeypatch.setenv("CELERY_BROKER_URL", two)
    with pytest.raises(InvalidAddress):
        configure_app(make()).connection_for_write()


SENTINELS = {
    "one URL": {"broker_url": "redis+sentinel://:secret@a:1;b:2/3"},
    "kombu's list in one text": {"broker_url": "sentinel://:secret@a:1/3;sentinel://:secret@b:2/3"},
    "kombu's list": {"broker_url": ["Sentinel://:secret@a:1/3", "sentinel://b:2"]},
    "kombu's transport": {"broker_url": "sentinel://:secret@a:1/3;sentinel://b:2", "broker_transport": "sentinel"},
}


@pytest.mark.parametrize("settings", SENTINELS.values(), ids=SENTINELS)
def test_sentinels_are_named_in_each_form_and_no_secret_shown(settings):
    app = configure_app(make(**settings, broker_transport_options={"master_name": "m"}))
    with app.connection_for_write() as connection:
        address = connection.transport.read_address()
        assert address.sentinels.hosts == (("a", 1), ("b", 2))
        assert (address.db, address.password) == (3, "secret")
        assert (connection.alt or [None])[1:] == []
        assert "secret" not in connection.as_uri()
        with connection.clone() as other:
            assert other.transport.read_address() == address


def test_sentinels_of_one_list_with_different_databases_are_refused():
    app = configure_app(make(broker_url="sentinel://:secret@a/1;sentinel://:secret@b/2"))
    with pytest.raises(InvalidAddress, match="different databases") as refused:
        app.connection_for_write()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["rediss://a;rediss://b", "rediss://a; REDISS://b", ["rediss://a", "valkeys://b"], "REDISS://a"])
def test_lists_with_tls_are_all_ours(url):
    connection = configure_app(make(broker_url=url)).connection_for_write()

    assert connection.transport_cls == "redispluss"
    assert all(address.startswith("redispluss://") for address in connection.alt)


def test_read_and_write_url_differ():
    app = configure_app(make(broker_read_url="redis://r", broker_write_url=f"{DOTTED}://w"))

    assert app.connection_for_read().as_uri().startswith(("redisplus://:**@r:", "redisplus://r:"))
    assert app.connection_for_write().as_uri().startswith(("redisplus://:**@w:", "redisplus://w:"))


@pytest.mark.parametrize(
    ("url", "scheme"), [("redis://h", "redisplus"), ("rediss://h", "redispluss"), ("h", "redisplus"), (None, "redisplus")]
)
def test_transport_setting_leads_to_us(url, scheme):
    app = configure_app(make(broker_url=url, broker_transport=DOTTED))

    assert app.connection_for_write().transport_cls == scheme


def test_failover_urls_are_all_ours():
    app = configure_app(make(broker_url=["redis://a", f"{DOTTED}://b"]))

    assert app.connection_for_write().alt == ["redisplus://a", "redisplus://b"]


def test_settings_with_an_import_path_can_be_shown():
    app = configure_app(make(broker_url=f"{DOTTED}://:secret@h"))

    assert "secret" not in app.bugreport()


def test_result_backend_is_left_alone():
    app = configure_app(make(broker_url="redis://h", result_backend="redis://h/1"))

    assert app.conf.result_backend == "redis://h/1"
    assert type(app.backend).__module__ == "celery.backends.redis"


def test_configuration_survives_pickling():
    app = pickle.loads(pickle.dumps(configure_app(make(broker_url="redis://h"))))

    assert app.connection_for_write().transport_cls == "redisplus"
    assert STEP in app.steps["consumer"]


def test_app_that_has_published_before_leaves_its_old_connections():
    app = make(broker_url="redis://h")
    assert app.producer_pool.connections.connection.transport_cls == "redis"
    configure_app(app)

    assert app.producer_pool.connections.connection.transport_cls == "redisplus"


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, []),
        ({"priority_steps": [0, 3]}, ["priority_steps"]),
        ({"sep": ":", "priority_steps": [0, 3]}, ["priority_steps and sep"]),
        ({"sep": ":", "priority_order": "high-first"}, []),
    ],
)
def test_priorities_of_kombu_are_asked_about_once(options, warned, caplog):
    app = configure_app(make(broker_url="redis://h", broker_transport_options=options))
    with caplog.at_level(logging.WARNING):
        app.connection_for_write()
        app.connection_for_read()

    assert len(caplog.messages) == len(warned)
    for message, name in zip(caplog.messages, warned, strict=True):
        assert name in message
        assert "priority_order" in message
        assert "'low-first'" in message
        assert "'high-first'" in message


def test_other_brokers_are_not_asked_about_priorities(caplog):
    configure_app(make(broker_url="memory://", broker_transport_options={"sep": ":"})).connection_for_write()

    assert "priority_order" not in caplog.text


def test_a_process_that_only_publishes_loads_nothing_of_workers_and_migration():
    code = (
        "import sys, celery, celery_redis_plus as ours; app = ours.configure_app(celery.Celery(broker='redisplus://127.0.0.1:1'));"
        "from celery_redis_plus import ack, nack, reject; app.connection_for_write().channel; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "celery_redis_plus.transport.transport" in loaded
    rooms = ("migration", "integration.worker", "spark", "cli")
    unneeded = (*(f"celery_redis_plus.{room}" for room in rooms), "celery.worker.consumer", "celery.app.trace", "billiard.pool")
    assert [module for module in loaded if module.startswith(unneeded)] == []


def test_celery_worker_has_our_options_once_beside_those_of_the_app():
    app = Celery(set_as_current=False)
    app.user_options["worker"].add(click.Option(["--before"]))
    configure_app(configure_app(app))
    app.user_options["worker"].add(click.Option(["--after"]))
    # As `celery.bin.celery` takes them.
    options = []
    options.extend(app.user_options.get("worker", []))
    assert sorted(option.name for option in options) == ["after", "before", "consumer_priority", "shard"]
