"""`celery-redis-plus policy` on a real server."""

from __future__ import annotations

import pytest

from tests.support.inbox import declare


def test_a_policy_is_set_listed_and_removed(cli, channel):
    declare(channel, "shop-1", "shop-2", "other")
    set_ = cli("policy", "shop-*", "x-rate-limit=50/m", "x-max-length=10", "x-overflow=null", "--reason", "quota", "--for", "2h")
    assert set_ == (0, "in force in 2 of 2 queue(s) that match\n", "")
    (shown,) = cli("policy", "--json").lines
    assert shown["arguments"] == {"x-rate-limit": "50/m", "x-max-length": 10, "x-overflow": None}
    assert (shown["pattern"], shown["reason"], shown["priority"]) == ("shop-*", "quota", 0)
    assert shown["until"] > shown["since"]
    assert "x-overflow=null x-max-length=10 x-rate-limit=50/m" in cli("policy", "shop-*").out
    assert cli("policy", "shop-*", "--remove", "--json").json == {"queues": ["shop-1", "shop-2"], "not_in_force": {}}
    assert cli("policy", "--json").out == ""


def test_a_queue_that_keeps_its_arguments_is_named(cli, channel):
    declare(channel, "a", "b", arguments={"x-delayed-retry-min": 100})
    declare(channel, "c")
    status, out, err = cli("policy", "*", "x-retry-policy=linear first=1000", "--reason", "calm")
    assert (status, out) == (1, "in force in 1 of 3 queue(s) that match\n")
    assert "queue 'a': argument 'x-retry-policy' of queue 'a' is 'linear first=1000' beside 'x-delayed-retry-min'" in err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["q", "x-rate-limit=50/m"], 2, "--reason is missing"),
        (["q", "x-rate-limit", "--reason", "r"], 2, "'x-rate-limit' is no argument"),
        (["q", "x-rate-limit=5", "--remove"], 2, "not both"),
        (["--remove"], 2, "not both"),
        (["q"], 1, "there is no policy 'q'"),
        (["q", "--remove"], 1, "there is no policy 'q'"),
        (
            ["q", "x-max-priority=5", "--reason", "r"],
            1,
            "argument 'x-max-priority' of policy 'q' cannot change while a queue lives",
        ),
        (["q", "x-rate-limit=often", "--reason", "r"], 1, "argument 'x-rate-limit' of policy 'q' is 'often' (str); allowed"),
    ],
)
def test_a_wrong_line_says_what_is_allowed(cli, channel, arguments, status, text):
    declare(channel, "q")
    found = cli("policy", *arguments)
    assert found.status == status
    assert text in found.err
