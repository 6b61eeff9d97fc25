"""Transport options: what is taken, what is refused and with which words."""

from __future__ import annotations

import inspect
import math
import socket

import pytest
from option_texts import option_texts

from celery_redis_plus.errors import CeleryRedisPlusError, OptionError
from celery_redis_plus.events import TRANSITIONS
from celery_redis_plus.kombu_options import ignored
from celery_redis_plus.options import Options

# What a URL's query gives, and what is meant.
FROM_TEXT = [
    ("visibility_timeout", "300", 300),
    ("visibility_timeout", "3.5", 3.5),
    ("polling_interval", "1e1", 10.0),
    ("stream_maxlen", "20", 20),
    ("stream_maxlen", "5000.0", 5000),
    ("fanout_patterns", "false", False),
    ("fanout_patterns", "1", True),
    ("fanout_prefix", "no", False),
    ("fanout_prefix", "/{db}-mine.", "/{db}-mine."),
    ("socket_keepalive", "Yes", True),
    ("ssl", "true", True),
]

REFUSED = [
    ("visibility_timeout", 2.9, ">= 3"),
    ("visibility_timeout", "soon", ">= 3"),
    ("visibility_timeout", math.nan, ">= 3"),
    ("visibility_timeout", math.inf, ">= 3"),
    ("visibility_timeout", True, ">= 3"),
    ("visibility_timeout", [300], ">= 3"),
    ("visibility_timeout", -(10**400), ">= 3"),
    ("polling_interval", 0, "from 0.05 to 3600"),
    ("priority_order", "highest", "'high-first' or 'low-first'"),
    ("queue_order_strategy", "random", "'round_robin' or 'sorted' or 'priority'"),
    ("global_keyprefix", 7, "text"),
    ("fanout_prefix", "", "True or False"),
    ("fanout_patterns", "maybe", "True or False"),
    ("socket_timeout", 0, "None (no limit)"),
    ("socket_keepalive_options", {"idle": 3}, "a mapping of whole numbers"),
    ("socket_keepalive_options", 3, "a mapping of whole numbers"),
    ("client_name", "my app", "without spaces"),
    ("client_name", "", "without spaces"),
    ("ssl", 7, "a mapping of redis-py's ssl_* arguments"),
    ("health_check_interval", -1, ">= 0"),
]


def test_defaults_are_those_of_the_documentation():
    options = Options()
    assert (options.visibility_timeout, options.polling_interval, options.health_check_interval) == (
        300,
        10,
        25,
    )
    assert (options.socket_timeout, options.socket_connect_timeout) == (5, 5)
    assert options.stream_maxlen == 10_000
    assert (options.global_keyprefix, options.fanout_prefix, options.fanout_patterns) == ("", True, True)
    assert options.queue_order_strategy == "round_robin"
    assert (options.publish_dedup_window, options.transient_queue_ttl) == (900, 300)
    assert options == Options.from_mapping({})


@pytest.mark.parametrize(("name", "text", "meant"), FROM_TEXT)
def test_text_from_a_url_is_understood(name, text, meant):
    value = getattr(Options.from_mapping({name: text}), name)
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_a_bad_value_is_refused_with_the_name_the_value_and_what_is_allowed(name, value, allowed):
    for make in (lambda: Options.from_mapping({name: value}), lambda: Options(**{name: value})):
        with pytest.raises(OptionError) as caught:
            make()
        message = str(caught.value)
        assert f"transport option {name}={value!r}" in message
        assert allowed in message
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, CeleryRedisPlusError)


def test_a_whole_number_of_seconds_stays_as_it_was_written():
    assert repr(Options(visibility_timeout=60).visibility_timeout) == "60"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("visibilty_timeout", "visibility_timeout"),
        ("key_prefix", "global_keyprefix"),
        ("poll_interval", "polling_interval"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(typo, meant):
    with pytest.raises(OptionError, match=f"unknown transport option '{typo}'; did you mean '{meant}'"):
        Options.from_mapping({typo: 1})


def test_an_unknown_option_near_to_nothing_is_refused_with_all_names():
    with pytest.raises(OptionError, match=r"known options: accept, .*event_log, .*visibility_timeout"):
        Options.from_mapping({"zzz": 1})


@pytest.mark.parametrize("value", [259200, "259200", 0, False])
def test_message_ttl_is_refused_with_the_reason_and_the_alternatives(value):
    with pytest.raises(OptionError, match=r"message_ttl=.*silently delete.*x-message-ttl.*expires="):
        Options.from_mapping({"message_ttl": value})


def test_message_ttl_none_is_what_applies_anyway():
    assert Options.from_mapping({"message_ttl": None}).message_ttl is None


def test_none_means_not_set_where_it_has_no_meaning_of_its_own():
    options = Options.from_mapping({"visibility_timeout": None, "stream_maxlen": None})
    assert (options.visibility_timeout, options.stream_maxlen) == (300, 10_000)


def test_the_names_of_events_are_those_that_there_are():
    assert Options.from_mapping({"event_log_events": list(TRANSITIONS)}).event_log_events == tuple(TRANSITIONS)


def test_none_is_kept_where_it_means_something():
    options = Options.from_mapping({"socket_timeout": None, "socket_connect_timeout": None})
    assert (options.socket_timeout, options.socket_connect_timeout) == (None, None)


def test_keepalive_options_are_numbers_even_from_json():
    options = Options.from_mapping({"socket_keepalive_options": {str(int(socket.TCP_KEEPIDLE)): "60"}})
    assert options.socket_keepalive_options == {socket.TCP_KEEPIDLE: 60}


def test_options_of_kombus_redis_transport_are_accepted_and_reported():
    old = {"priority_steps": [0, 3, 6, 9], "sep": ":", "unacked_key": "unacked", "protocol": 3, "visibility_timeout": 60}
    options = Options.from_mapping(old)
    assert options.visibility_timeout == 60
    assert ignored(old) == ["priority_steps", "protocol", "sep", "unacked_key"]


def test_every_option_of_kombus_redis_transport_is_known():
    virtual = pytest.importorskip("kombu.transport.redis")
    for name in virtual.Channel.from_transport_options:
        Options.from_mapping({name: None})
        assert hasattr(Options(), name) or ignored({name: None}) == [name]


def test_what_kombu_writes_into_the_same_dict_is_passed_over_silently():
    policy = {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 1,
        "errback": print,
        "on_revive": None,
        "retry_errors": (KeyError,),
        "connect_retries_timeout": 4,
        "callback": print,
    }
    assert Options.from_mapping(policy) == Options()
    assert ignored(policy) == []


def test_every_argument_of_kombus_retry_is_passed_over():
    kombu = pytest.importorskip("kombu")
    for method in (kombu.Connection.ensure, kombu.Connection._ensure_connection):  # noqa: SLF001
        names = set(inspect.signature(method).parameters) - {"self", "obj", "fun"}
        assert Options.from_mapping(dict.fromkeys(names)) == Options()


def test_an_explicit_option_and_the_dict_it_came_from_are_independent():
    given = {"visibility_timeout": 60}
    options = Options.from_mapping(given)
    given["visibility_timeout"] = 1
    assert options.visibility_timeout == 60


def test_no_secret_is_printed_and_options_can_be_hashed():
    options = Options(ssl={"ssl_password": "s3cret"}, credential_provider=object(), fanout_prefix="/x.")
    assert "s3cret" not in repr(options)
    assert hash(options) == hash(Options(fanout_prefix="/x."))
    assert hash(options) != hash(Options())


def test_the_table_has_every_option_with_all_that_the_documentation_prints():
    rows = {name: row for name, *row in option_texts()}
    assert rows["visibility_timeout"][:3] == ["float", "300", "s"]
    assert rows["socket_timeout"][0] == "float or None"
    for kind, _, _, allowed, doc in rows.values():
        assert doc.endswith(".")
        assert kind
        assert allowed
