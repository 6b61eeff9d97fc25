"""`celery-redis-plus dead-letters` with filters, dry runs and questions."""

from __future__ import annotations

import pytest

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.broker.dead_letters import search
from celery_redis_plus.cli.commands import dead_letters
from celery_redis_plus.errors import QueueNotFound
from tests.support.inbox import declare, publish

TASKS = ("shop.pay", "shop.mail", "shop.pay", "report.day")


@pytest.fixture
def letters(channel, redis_client):
    """Queue `q` with four dead letters: two rejected, of which the first died 3 hours ago, and two cancelled."""
    declare(channel, "q", "other")
    for number, task in enumerate(TASKS):
        publish(channel, "q", f"body {number}", headers={"task": task})
    for _ in range(2):
        channel.basic_get("q").reject()
    with BrokerAdmin(channel.connection.client.as_uri(include_password=True)) as admin:
        tags = [one.tag for one in admin.list_messages("q", "ready")]
        admin.cancel("q", tags, dead_letter=True)
        dead = channel.session.keys.queue("q").dead
        first = redis_client.zrange(dead, 0, 0)[0]
        redis_client.zincrby(dead, -3 * 3_600_000, first)
        yield admin.dead_letters


def bodies(cli, *arguments):
    return [one["body"] for one in cli("dead-letters", "list", "q", "--json", *arguments).lines]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), [0, 1, 2, 3]),
        (("--task", "shop.pay"), [0, 2]),
        (("--task", "shop.*", "--reason", "cancelled"), [2]),
        (("--reason", "rejected"), [0, 1]),
        (("--older-than", "2h"), [0]),
        (("--newer-than", "2h"), [1, 2, 3]),
        (("--older-than", "4h"), []),
        (("--limit", "3"), [0, 1, 2]),
    ],
)
def test_filters_select(cli, letters, arguments, found, monkeypatch):
    monkeypatch.setattr(search, "DEAD_LETTER_PAGE", 2)
    assert bodies(cli, *arguments) == [f"body {number}" for number in found]


def test_a_dry_run_counts_and_changes_nothing(cli, letters):
    assert cli("dead-letters", "replay", "q", "--task", "shop.pay", "--dry-run").out == (
        "2 dead letter(s) of queue 'q' would be replayed\n"
    )
    assert cli("dead-letters", "delete", "q", "--reason", "rejected", "--dry-run", "--json").json == {
        "queue": "q", "deleted": 2, "dry_run": True,
    }  # fmt: skip
    assert cli("dead-letters", "purge", "q", "--dry-run", "--json").json["deleted"] == 4
    assert letters.count("q") == 4


def test_those_selected_are_replayed(cli, letters):
    assert cli("dead-letters", "replay", "q", "--task", "shop.pay", "--json").json == {
        "queue": "q", "replayed": 2, "refused": 0, "dry_run": False,
    }  # fmt: skip
    assert cli("dead-letters", "replay", "q", "--all", "--to", "other").status == 0
    found = {one["queue"]: (one["ready"], one["dead"]) for one in cli("queues", "--json").lines}
    assert found == {"q": (2, 0), "other": (2, 0)}


def test_what_is_refused_stays_and_is_named(cli, letters, monkeypatch):
    monkeypatch.setattr(dead_letters, "MAX_REFUSED_SHOWN", 1)
    printed = cli("dead-letters", "replay", "q", "--all", "--to", "nowhere")
    assert (printed.status, letters.count("q")) == (1, 4)
    assert printed.out == "0 dead letter(s) of queue 'q' are back to work\n"
    first, last = printed.err.splitlines()
    assert "queue 'nowhere' does not exist" in first
    assert last == "celery-redis-plus dead-letters replay: 4 dead letter(s) stay where they are"


def test_those_selected_are_deleted(cli, letters):
    printed = cli("dead-letters", "delete", "q", "--older-than", "2h")
    assert printed.status == 2
    assert "Delete the dead letters of queue 'q' that the filters select (of 1)? There is no terminal to ask on" in printed.err
    assert cli("dead-letters", "delete", "q", "--older-than", "2h", "--yes").status == 0
    assert bodies(cli) == ["body 1", "body 2", "body 3"]
    assert "confirm with --yes" in cli("dead-letters", "purge", "q").err
    assert cli("dead-letters", "delete", "q", "--all", "--yes").out == "3 dead letter(s) of queue 'q' are deleted\n"


@pytest.mark.parametrize("action", ["replay", "delete"])
def test_nothing_is_selected_by_mistake(cli, letters, action):
    assert "nothing is selected" in cli("dead-letters", action, "q").err
    assert "either tags, or --all and filters" in cli("dead-letters", action, "q", "T", "--all").err
    assert cli("dead-letters", action, "q", "T", "--task", "x").status == 2
    assert letters.count("q") == 4


def test_a_dead_letter_that_dies_again_is_replayed_once(cli, letters, channel, broker_url):
    """A search holds those that are dead when it begins."""
    with BrokerAdmin(broker_url) as admin:
        found = admin.search_dead_letters("q", search.DeadLetterFilter())
        ((_, page),) = list(found.pages())
        assert admin.replay_page(page) == [True] * 4
        for _ in range(4):
            channel.basic_get("q").reject()
        assert admin.dead_letters.count("q") == 4
        assert len(found.tags) == 4
        # A second replay of the same page finds each of them gone or dead again; none is doubled.
        admin.replay_page(page)
        assert admin.dead_letters.count("q") + admin.overview_of("q").ready == 4
        with pytest.raises(QueueNotFound):
            admin.search_dead_letters("nothing", search.DeadLetterFilter())


def test_show_prints_fields_for_people(cli, letters):
    tag = letters.page("q")[0].tag
    fields = dict(line.split(maxsplit=1) for line in cli("dead-letters", "show", "q", tag).out.splitlines())
    assert (fields["reason"], fields["headers.task"], fields["body"]) == ("rejected", "shop.pay", "body 0")
