"""`celery-redis-plus limiters`, and what `why` and `check` say of messages that wait for one."""

from __future__ import annotations

import re

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.errors import InvalidArgument
from tests.support.inbox import declare, publish
from tests.support.waiting import wait_until


@pytest.fixture
def limited(channel):
    """A queue `q` with three messages that wait for the key c7 of a limiter, and one that has passed."""
    declare(channel, "q")
    publish(channel, "q", "a1", "a2", "a3", "a4", headers={"x-limiter": "a:2/h burst=1 key=c7"})
    publish(channel, "q", "b1", headers={"x-limiter": "b:concurrency=3"})
    assert get(channel, 3) == ["a1", "b1", None]
    return channel


def get(channel, count):
    messages = [channel.basic_get("q") for _ in range(count)]
    return [message and message.payload for message in messages]


def test_limiters_are_listed_those_with_the_most_waiting_messages_first(cli, limited):
    first, second = cli("limiters", "--json").lines
    assert 0 <= first.pop("free") < 0.1
    assert first == {
        "limiter": "a:c7", "rule": "2/h burst=1", "set_rule": None, "waiting": 3, "queues": 1, "held_s": 0.0,
    }  # fmt: skip
    assert second == {
        "limiter": "b", "rule": "concurrency=3", "set_rule": None, "free": 2.0, "waiting": 0, "queues": 0, "held_s": 0.0,
    }  # fmt: skip
    assert re.search(r"^a:c7 +2/h burst=1 +0(\.0\d*)? +3 +-$", cli("limiters").out, re.MULTILINE)


def test_a_rule_holds_at_once_for_a_name_with_all_its_keys_until_its_default(cli, limited):
    cli("limiters", "a", "--rate", "1000/s burst=2")
    assert wait_until(lambda: (found := limited.basic_get("q")) and found.payload, 10) == "a2"
    assert "1000/s burst=2 (set; its messages say 2/h burst=1)" in cli("limiters", "a").out
    cli("limiters", "a", "--default")
    assert cli("limiters", "a:c7", "--json").json["set_rule"] is None


def test_a_hold_lets_nothing_pass_and_ends(cli, limited):
    assert cli("limiters", "b", "--hold", "60", "--json").json["held_s"] > 59
    publish(limited, "q", "b2", headers={"x-limiter": "b:concurrency=3"})
    assert get(limited, 1) == [None]
    cli("limiters", "b", "--hold", "0")
    assert wait_until(lambda: (found := limited.basic_get("q")) and found.payload, 10) == "b2"


def test_a_limiter_that_is_held_before_its_first_message_is_listed_with_it(cli, channel):
    declare(channel, "q")
    held = cli("limiters", "stripe", "--hold", "3600")
    assert (held.status, held.err) == (0, "no message has asked for limiter 'stripe' yet; what is set is in force\n")
    publish(channel, "q", "x", headers={"x-limiter": "stripe:100/s"})
    assert get(channel, 1) == [None]
    listed = cli("limiters", "--json").json
    assert (listed["limiter"], listed["waiting"]) == ("stripe", 1)
    assert 3500 < listed["held_s"] <= 3600
    assert cli("limiters", "stripe", "--hold", "0").err == ""
    assert wait_until(lambda: (found := channel.basic_get("q")) and found.payload, 10) == "x"


def test_why_names_the_limiter_and_when_it_has_room(cli, limited, redis_client):
    tag = redis_client.zrange("limited:{q}", 0, -1)[1].decode().partition("\0")[2][16:]
    told = cli("why", tag).out
    assert re.search(r"it waits for limiter 'a:2/h burst=1 key=c7', behind 1 of its queue; that is looked at again at 20", told)
    assert "its turn: not before its queue has a consumer" in told


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--hold", "5"), "LIMITER is missing"),
        (("a b", "--hold", "5"), r"limiter 'a b'; allowed is a name of 64 letters"),
        (("a", "--rate", "fast"), r"'fast' in limiter 'fast'; allowed"),
        (("a", "--rate", "1/s", "--default"), "--default goes with no --rate"),
    ],
)
def test_what_is_not_allowed_is_said(arguments, text, cli):
    printed = cli("limiters", *arguments)
    assert printed.status != 0
    assert re.search(text, printed.err)


def test_a_program_holds_and_sets_limiters(broker_url, limited):
    with BrokerAdmin(broker_url) as admin:
        admin.hold_limiter("a:c7", 60)
        admin.set_limiter("a:c7", "5/s")
        (found,) = (one for one in admin.limiters() if one.limiter == "a:c7")
        assert (found.set_rule, found.held_s > 59) == ("5/s", True)
        with pytest.raises(InvalidArgument, match="hold of limiter 'a' for -1; allowed is a number of seconds"):
            admin.hold_limiter("a", -1)
        assert {entry.action for entry in admin.audit.entries()} == {"hold limiter", "set limiter"}


def test_check_repairs_what_others_have_broken(broker_url, limited, redis_client):
    member = redis_client.zrange("limited:{q}", 0, 0)[0]
    redis_client.zrem("limited:{q}", member)
    redis_client.delete("limiter_places:{b}")
    with BrokerAdmin(broker_url) as admin:
        found = sorted(violation.rule for violation in admin.checker(repair=True).run())
        assert found == ["not-in-limiter", "not-in-limiter"]
        assert list(admin.checker().run()) == []
