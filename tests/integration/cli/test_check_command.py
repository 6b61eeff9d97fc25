"""`celery-redis-plus check` as an operator calls it."""

from __future__ import annotations

import json

import kombu
import pytest

from celery_redis_plus.cli import main
from celery_redis_plus.keys import Keys
from tests.support.inbox import publish

KEYS = Keys("app:")


@pytest.fixture
def url(broker_url):
    """A broker with a queue of two messages under a prefix; its URL names both."""
    url = f"{broker_url}?global_keyprefix=app:"
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        publish(channel, "q", "a", "b")
    return url


@pytest.fixture
def damaged(url, redis_client):
    redis_client.zadd(KEYS.queue("q").ready, {"nothing": 5})
    return url


def run(*arguments):
    return main.main(["check", *arguments])


def test_a_clean_broker_ends_with_0_and_says_what_was_seen(url, capsys):
    assert run("--url", url) == 0
    assert capsys.readouterr().out == "1 queue(s), 2 message(s): no violation\n"


def test_the_broker_may_come_from_the_environment_and_the_prefix_from_the_line(damaged, monkeypatch, capsys):
    monkeypatch.setenv("CELERY_BROKER_URL", damaged.partition("?")[0])
    assert run() == 0
    assert run("--prefix", "app:") == 1


def test_a_violation_is_one_line_and_the_exit_status_1(damaged, capsys):
    assert run("--url", damaged) == 1
    line, summary = capsys.readouterr().out.splitlines()
    assert line == "'q' nothing: tag-without-hash: ready"
    assert summary == "1 queue(s), 2 message(s): 1 violation(s), 0 repaired"


def test_a_repair_ends_with_1_and_the_next_check_with_0(damaged, capsys):
    assert run("--url", damaged, "--repair", "--batch", "1") == 1
    assert capsys.readouterr().out.splitlines()[0].endswith("(repaired)")
    assert run("--url", damaged) == 0


def test_json_is_one_object_a_line(damaged, capsys):
    assert run("--url", damaged, "--json") == 1
    violation, account = map(json.loads, capsys.readouterr().out.splitlines())
    assert violation == {
        "rule": "tag-without-hash",
        "owner": "q",
        "subject": "nothing",
        "detail": "ready",
        "repaired": False,
    }
    assert account == {"account": {"queues": 1, "messages": 2, "violations": 1, "repaired": 0}}


def test_one_queue_alone(damaged, redis_client, capsys):
    redis_client.hset(KEYS.queue("other").meta, mapping={"id": "zz", "arguments": "{}"})
    assert run("--url", damaged, "--queue", "q") == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "redis://127.0.0.1:1/0"), "could not run"),
        (("--url", "amqp://localhost"), "unknown scheme 'amqp'"),
        (("--url", "redis://127.0.0.1/0?nonsense=1"), "unknown transport option 'nonsense'"),
    ],
)
def test_a_check_that_could_not_run_ends_with_2(arguments, message, monkeypatch, capsys):
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("batch", ["0", "501", "many"])
def test_a_batch_that_is_none_ends_with_2(batch, capsys):
    assert run("--batch", batch) == 2
    assert "--batch" in capsys.readouterr().err
