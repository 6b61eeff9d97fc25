"""`celery-redis-plus dead-letters` on a real server."""

from __future__ import annotations

import json

import kombu
import pytest

from celery_redis_plus.cli.main import main
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, publish
from tests.support.waiting import wait_until


@pytest.fixture
def channel(connect):
    return connect().channel()


@pytest.fixture
def run(broker_url, capsys):
    def call(action, *arguments):
        status = main(["dead-letters", action, "--url", broker_url, *arguments])
        return status, capsys.readouterr()

    return call


@pytest.fixture
def tags(channel):
    inbox = Inbox(channel, "q", ack=False)
    publish(channel, "q", "one", "two", "three", headers={"task": "shop.pay"})
    inbox.drain(3)
    for message in inbox.messages:
        message.reject()
    inbox.cancel()
    letters = dead_letters_of(channel)
    return wait_until(lambda: letters.count("q") == 3 and [letter.tag for letter in letters.page("q")])


def test_they_are_listed_and_shown(run, tags):
    status, printed = run("list", "q", "--limit", "2")
    assert status == 0
    assert [line.split()[0] for line in printed.out.splitlines()[1:3]] == tags[:2]
    assert "shop.pay" in printed.out
    assert printed.out.endswith("2 of 3 dead letters of queue 'q'\n")
    newest = run("list", "q", "--newest", "--limit", "2")[1].out.splitlines()[1:3]
    assert [line.split()[0] for line in newest] == tags[:0:-1]
    status, printed = run("list", "q", "--json")
    assert [json.loads(line)["body"] for line in printed.out.splitlines()] == ["one", "two", "three"]
    status, printed = run("show", "q", tags[1], "--json")
    shown = json.loads(printed.out)
    assert (status, shown["body"], shown["reason"]) == (0, "two", "rejected")
    assert shown["headers"]["x-death"][0]["queue"] == "q"


@pytest.mark.parametrize("order", [[], ["--newest"]])
def test_a_list_without_filters_reads_what_it_shows(run, tags, redis_client, order):
    redis_client.zadd("dead:{q}", {f"{number}.absent": 1_000 + number for number in range(50_000)}, nx=True)
    before = redis_client.info("stats")["total_net_output_bytes"]
    assert run("list", "q", "--limit", "2", *order)[0] == 0
    assert redis_client.info("stats")["total_net_output_bytes"] - before < 100_000


def test_one_some_and_all_are_replayed(run, tags, channel):
    assert run("replay", "q", tags[1])[1].out == "1 dead letter(s) of queue 'q' are back to work\n"
    assert run("replay", "q", "--all", "--to", "q")[1].out == "2 dead letter(s) of queue 'q' are back to work\n"
    assert sorted(Inbox(channel, kombu.Queue("q", no_declare=True)).drain(3)) == ["one", "three", "two"]


def test_they_are_deleted(run, tags, channel):
    assert run("delete", "q", tags[0])[0] == 0
    assert run("purge", "q", "--yes")[1].out == "2 dead letter(s) of queue 'q' are deleted\n"
    assert dead_letters_of(channel).count("q") == 0


def test_what_does_not_exist_is_named(run, tags):
    status, printed = run("list", "nothing")
    assert (status, printed.err) == (1, "celery-redis-plus dead-letters: there is no queue 'nothing'\n")
    for action in ("show", "replay"):
        status, printed = run(action, "q", "T")
        assert (status, printed.err) == (1, f"celery-redis-plus dead-letters {action}: queue 'q' has no dead letter 'T'\n")
    assert run("delete", "q", "T")[0] == 1
    assert run("replay", "q")[0] == 2
    assert run("replay", "--to", "nowhere", "q", tags[0])[0] == 1
    status, printed = run("list", "q", "--limit", "0")
    assert status == 2
    assert "'--limit': 0 is not in the range 1<=x<=1000000000" in printed.err
