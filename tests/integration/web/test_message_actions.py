"""Acts on single messages of the web page, its lists of scheduled, running and dead ones, and counts before bulk actions."""

from __future__ import annotations

import html
import json
import re

import pytest

from celery_redis_plus.cli.main import main
from celery_redis_plus.cli.web import listings
from celery_redis_plus.cli.web.samples import DAY_INTERVAL_S, KEPT_OF_DAY
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def notice(answer):
    return html.unescape(re.search(r'<p class="notice"[^>]*>(.*?)</p>', answer.text)[1]).strip()


def tasks(answer):
    """Return what stands in the first column of a page's first table."""
    return re.findall(r'<td data-label="Message">.*?<a [^>]*>([^<]*)</a>', answer.text)


def named(page, queue, state):
    return [f"{one.tag} {queue}" for one in page.admin().list_messages(queue, state)]


@pytest.fixture
def shop(channel):
    declare(channel, "q", "other")
    for number in range(3):
        publish(channel, "q", number, headers={"task": f"shop.{number}", "id": f"id-{number}", "argsrepr": f"({number},)"})
    publish(channel, "q", "later", headers={"task": "shop.later", "id": "id-later", "x-delay": 3_600_000})
    return channel


def test_each_act_on_one_message_leads_to_where_it_is_then(page, shop):
    first, second, third = named(page, "q", "ready")
    (later,) = named(page, "q", "delayed")
    at = {"back": "/message", "queue": "q"}
    shown = page.get("/message", queue="q", id=later.split()[0])
    assert "Run now" in shown.text
    run = page.post("/messages/run-now", {"message": later}, **at, id=later.split()[0])
    assert notice(run) == "The message is ready."
    assert "PENDING" in run.text
    raised = page.post("/messages/prioritize", {"message": third, "priority": "7"}, **at, id=third.split()[0])
    assert notice(raised) == "The message is given priority 7."
    assert "<dt>Priority</dt><dd>7</dd>" in raised.text
    moved = page.post("/messages/move", {"message": second, "to": "other"}, **at, id=second.split()[0])
    assert notice(moved) == "The message is in queue 'other'."
    assert 'href="/queue?name=other"' in moved.text
    gone = page.post("/messages/cancel", {"message": first}, **at, id=first.split()[0])
    assert notice(gone) == "The message is cancelled."
    assert "<h1>q</h1>" in gone.text
    again = page.post("/messages/cancel", {"message": first}, back="/queue", name="q")
    assert notice(again) == "The message waits there no longer: nothing was done."
    inbox = Inbox(shop, "q", ack=False)
    inbox.drain(2)
    assert inbox.bodies == [2, "later"]
    held = page.get("/running")
    assert tasks(held) == ["shop.2", "shop.later"]
    assert re.search(r'data-label="Host and pid">[^<]+:\d+<', held.text)
    kicked = page.post("/messages/kick", {"message": named(page, "q", "unacked")}, back="/running")
    assert notice(kicked) == "2 of 2 messages are back in their queues."
    done = [one.action for one in page.admin().audit.entries()]
    assert sorted(done) == ["cancel", "kick", "kick", "move", "prioritize", "reschedule"]


@pytest.mark.parametrize(
    ("path", "form", "parameters", "said"),
    [
        ("cancel", {}, {"back": "/queue", "name": "q"}, "No message is ticked."),
        ("run-now", {"message": "1 q"}, {"back": "/evil"}, "back=/evil: allowed are"),
        ("move", {"message": "1 q"}, {"back": "/queue"}, "lacks the queue to move to"),
        ("move", {"message": "1 q", "to": "q"}, {"back": "/queue"}, "name another one"),
        ("prioritize", {"message": "1 q", "priority": "256"}, {"back": "/queue"}, "allowed are whole numbers from 0 to 255"),
        ("prioritize", {"message": "1 q", "priority": "high"}, {"back": "/queue"}, "allowed are whole numbers from 0 to 255"),
    ],
)
def test_a_form_that_means_nothing_is_refused(page, shop, path, form, parameters, said):
    answer = page.post(f"/messages/{path}", form, **parameters)
    assert (answer.status, said in html.unescape(answer.text)) == (400, True)
    assert page.admin().overview_of("q").ready == 3


def test_scheduled_messages_are_filtered_and_shown_in_pages(page, channel, monkeypatch):
    monkeypatch.setattr(listings, "ROWS", 2)
    declare(channel, "a", "b")
    for number in range(5):
        headers = {
            "task": f"t.{number}",
            "id": f"id-{number}",
            "kwargsrepr": f"{{'order': {number}}}",
            "x-delay": 3_600_000 + number,
        }
        publish(channel, "ab"[number % 2], number, headers=headers)
    assert tasks(page.get("/scheduled")) == ["t.0", "t.1"]
    assert tasks(page.get("/scheduled", page=2)) == ["t.4"]
    assert tasks(page.get("/scheduled", queue="b")) == ["t.1", "t.3"]
    assert tasks(page.get("/scheduled", queue="*", task="t.4")) == ["t.4"]
    found = page.get("/scheduled", text="'order': 3")
    assert tasks(found) == ["t.3"]
    assert "1 found among messages 1 to 5 of 5" in found.text
    assert page.get("/scheduled", queue="none").status == 404
    assert page.get("/scheduled", page=3_000).status == 400
    done = page.post("/messages/run-now", {"message": named(page, "a", "delayed")}, back="/scheduled", queue="a")
    assert notice(done) == "3 of 3 messages are ready."


@pytest.fixture
def errors(page, channel):
    """Three dead letters of queue `q`, the tasks `pay`, `mail`, `pay`, each with its error; and one message that waits."""
    for number, task in enumerate(("pay", "mail", "pay")):
        publish(channel, "q", number, headers={"task": task, "id": f"id-{number}", "argsrepr": f"({number},)"})
    inbox = Inbox(channel, "q", ack=False)
    inbox.drain(3)
    for message, error in zip(inbox.messages, ("KeyError: 'a'", "ValueError: no", "KeyError: 'b'"), strict=True):
        page.admin().commands.command(
            "HSET", page.admin().keys.queue("q").message + message.delivery_tag.encode(), "error", error
        )
        message.reject()
        wait_until(lambda number=message.payload: page.admin().dead_letters.count("q") == number + 1)
    inbox.cancel()
    declare(channel, "other")
    publish(channel, "q", "waits", headers={"task": "pay", "id": "id-3"})


def test_dead_letters_are_newest_first_filtered_and_grouped_by_error(page, errors, broker_url, capsys, monkeypatch):
    monkeypatch.setattr(listings, "ROWS", 2)

    def printed(*arguments):
        capsys.readouterr()
        assert main(["dead-letters", *arguments, "--json", "--broker", broker_url]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    shown = page.get("/dead-letters", queue="q")
    assert tasks(shown) == ["pay", "mail"]
    assert "<code>(2,)</code>" in shown.text
    assert tasks(page.get("/dead-letters", queue="q", page=1)) == ["pay"]
    assert tasks(page.get("/dead-letters", queue="q", order="oldest")) == ["pay", "mail"]
    assert "(1,)" in page.get("/dead-letters", queue="q", error="ValueError").text
    assert tasks(page.get("/dead-letters", queue="q", text="id-1")) == ["mail"]
    groups = page.get("/dead-letters/groups", queue="q").text
    cells = [html.unescape(re.sub(r"<.*?>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", groups)]
    assert [*cells[:4], cells[6]] == ["2", "pay", "rejected", "KeyError", "KeyError: 'b'"]
    assert [(one["count"], one["task"], one["error"]) for one in printed("groups", "q")] == [
        (2, "pay", "KeyError"), (1, "mail", "ValueError"),
    ]  # fmt: skip
    assert [one["headers"]["id"] for one in printed("list", "q", "--newest", "--error", "KeyError: *")] == ["id-2", "id-0"]
    assert [one["headers"]["id"] for one in printed("list", "q", "--text", "(1,)")] == ["id-1"]


@pytest.mark.parametrize(
    ("parameters", "said", "button"),
    [
        ({"action": "replay"}, "Put 3 dead letters back to work?", "Replay 3 dead letters"),
        ({"action": "delete", "task": "pay"}, "Delete 2 dead letters for good?", "Delete 2 dead letters"),
        ({"action": "delete", "error": "KeyError"}, "Delete 2 dead letters for good?", "Delete 2 dead letters"),
        ({"action": "move", "task": "pay", "to": "other"}, "Move 1 message?", "Move 1 message"),
        ({"action": "cancel", "task": "*"}, "Cancel 1 message for good?", "Cancel 1 message"),
        ({"action": "purge"}, "Delete 1 message for good?", "Purge 1 message"),
        ({"action": "delete", "task": "none"}, "Delete 0 dead letters for good?", None),
    ],
)
def test_what_a_bulk_action_is_about_is_counted_before(page, errors, parameters, said, button):
    shown = page.get("/confirm", queue="q", **parameters)
    assert (shown.status, f"<h1>{said}</h1>" in shown.text) == (200, True)
    assert re.findall(r"<button[^>]*>(\w+ \d+ [^<]*)</button>", shown.text) == ([button] if button else [])
    assert page.admin().overview_of("q").dead == 3


@pytest.mark.parametrize(
    ("parameters", "status", "said"),
    [
        ({"action": "drop"}, 400, "action=drop: allowed are"),
        ({"action": "cancel"}, 400, "The form lacks the task"),
        ({"action": "move", "task": "pay"}, 400, "lacks the queue to move to"),
        ({"action": "move", "task": "pay", "to": "nowhere"}, 404, "there is no queue 'nowhere'"),
    ],
)
def test_a_count_of_nothing_is_refused(page, errors, parameters, status, said):
    shown = page.get("/confirm", queue="q", **parameters)
    assert (shown.status, said in html.unescape(shown.text)) == (status, True)


def test_a_queue_is_purged(page, shop):
    page.post("/queue/purge", name="q")
    wait_until(lambda: not page.bulk.of("/queue", "q").is_running)
    assert page.bulk.of("/queue", "q").looked_at == 4, "as it told on the way"
    assert "4 are deleted" in page.get("/queue", name="q").text
    (entry,) = page.admin().audit.entries()
    assert (entry.action, entry.count) == ("purge", 4)


def test_queues_are_sorted_by_the_worst_and_summed_up(page, shop):
    for number in range(5):
        publish(shop, "other", number)
    shown = page.get("/", sort="ready").text
    assert re.findall(r'data-label="Queue"><a [^>]*>([^<]*)', shown) == ["other", "q"]
    assert "8 ready, 1 delayed" in shown
    assert re.findall(r'data-label="Queue"><a [^>]*>([^<]*)', page.get("/").text) == ["q", "other"]
    assert page.get("/", sort="odd").status == 400


def test_the_history_of_a_day_is_kept(page, shop):
    overviews = page.admin().overview("q")
    for number in range(KEPT_OF_DAY + 10):
        for part in (0, 60):
            page.samples.add(overviews, number * DAY_INTERVAL_S + part)
    assert len(page.samples.of_day("q")) == KEPT_OF_DAY
    assert "<summary>The last 24 h</summary>" in page.get("/queue", name="q").text
