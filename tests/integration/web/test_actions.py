"""What the forms of the web page do."""

from __future__ import annotations

import html
import logging
import re

import pytest

from celery_redis_plus.broker.dead_letters.unroutable import UNDELIVERED
from celery_redis_plus.broker.queues import audit
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


def notice(answer):
    return html.unescape(re.search(r'<p class="notice"[^>]*>(.*?)</p>', answer.text)[1]).strip()


def test_each_action_is_in_the_audit_log_with_its_address(page, channel, dead, caplog):
    first, *_ = dead("q", "one", "two", "three", headers={"task": "shop.pay"})
    caplog.set_level(logging.INFO, audit.__name__)
    page.post("/queue/pause", {"reason": "tests", "for": ""}, name="q")
    page.post("/queue/resume", name="q")
    page.post("/dead-letters/delete", {"tag": [first]}, queue="q")
    page.post("/dead-letters/replay-many", {"task": "shop.*"}, queue="q")
    wait_until(lambda: not page.bulk.of("/dead-letters", "q").is_running)
    page.post("/queue/cancel", {"task": "shop.*"}, name="q")
    wait_until(lambda: not page.bulk.of("/queue", "q").is_running)
    found = list(page.admin().audit.entries())
    assert [(one.action, one.queue, one.count, one.outcome) for one in reversed(found)] == [
        ("pause", "q", 1, "done"),
        ("resume", "q", 1, "done"),
        ("delete dead letters", "q", 1, "done"),
        ("replay", "q", 2, "done"),
        ("cancel", "q", 2, "done"),
    ]
    assert {(one.actor, one.via, one.origin) for one in found} == {("web", "web", "an unknown address")}
    assert found[0].details == {"task": "shop.*"}
    lines = [record.getMessage() for record in caplog.records if record.name == audit.__name__]
    assert lines[0] == "audit: pause in queue 'q': 1 changed, reason tests, by web (web, an unknown address)"
    assert len(lines) == 5


def test_ticked_dead_letters_are_replayed(page, channel, dead):
    first, second, third = dead("q", "one", "two", "three")
    answer = page.post("/dead-letters/replay", {"tag": [first, third]}, queue="q")
    assert notice(answer) == "2 of 2 dead letters are back to work."
    assert Inbox(channel, "q").exactly(2) == ["one", "three"]
    assert [letter.tag for letter in dead_letters_of(channel).page("q")] == [second]
    again = page.post("/dead-letters/replay", {"tag": [first]}, queue="q")
    assert notice(again) == "0 of 1 dead letters are back to work."


def test_a_dead_letter_that_no_queue_takes_stays_and_the_page_says_why(page, channel):
    channel.exchange_declare("shop", type="direct")
    publish(channel, "nowhere", "x", exchange="shop")
    (letter,) = dead_letters_of(channel).page(UNDELIVERED)
    answer = page.post("/dead-letters/replay", {"tag": letter.tag}, queue=UNDELIVERED)
    assert "still no queue takes messages to exchange 'shop'" in notice(answer)
    assert dead_letters_of(channel).count(UNDELIVERED) == 1


def test_ticked_dead_letters_are_deleted(page, channel, dead):
    first, second = dead("q", "one", "two")
    answer = page.post("/dead-letters/delete", {"tag": [first, "unknown"]}, queue="q")
    assert notice(answer) == "1 of 2 dead letters are deleted."
    assert [letter.tag for letter in dead_letters_of(channel).page("q")] == [second]


def test_without_a_tick_nothing_happens(page, channel, dead):
    dead("q", "one")
    for action in ("replay", "delete"):
        answer = page.post(f"/dead-letters/{action}", queue="q")
        assert (answer.status, "No dead letter is ticked" in answer.text) == (400, True)
    assert dead_letters_of(channel).count("q") == 1


def test_a_queue_is_paused_and_resumed(page, channel):
    declare(channel, "q")
    answer = page.post("/queue/pause", {"reason": "the <database> moves", "for": "900"}, name="q")
    assert notice(answer) == "Queue 'q' is paused."
    assert "the &lt;database&gt; moves" in answer.text
    assert "Paused until" in answer.text
    assert "paused" in page.get("/").text
    publish(channel, "q", "x")
    answer = page.post("/queue/resume", name="q")
    assert notice(answer) == "Queue 'q' goes on."
    assert Inbox(channel, "q").exactly(1) == ["x"]
    assert notice(page.post("/queue/resume", name="q")) == "Queue 'q' was not paused."


@pytest.mark.parametrize(
    ("form", "said"), [({"reason": ""}, "reason"), ({"reason": " "}, "reason"), ({"reason": "x", "for": "-1"}, "for=-1")]
)
def test_a_pause_that_is_none_is_refused(page, channel, form, said):
    declare(channel, "q")
    answer = page.post("/queue/pause", form, name="q")
    assert (answer.status, said in answer.text) == (400, True)


@pytest.mark.parametrize("path", ["/queue/pause", "/queue/resume"])
def test_an_unknown_queue_is_said(page, path):
    answer = page.post(path, {"reason": "x"}, name="nonesuch")
    assert (answer.status, "there is no queue" in answer.text) == (404, True)


def test_a_notice_is_shown_once(page, channel):
    declare(channel, "q")
    answer = page.ask(
        "POST", "/queue/resume?name=q", f"form_token={page.access.form_token}", Cookie=page.cookie, Origin=f"http://{page.host}"
    )
    where = answer.headers["Location"]
    assert "was not paused" in page.get(where).text
    assert "was not paused" not in page.get(where).text
    assert "notice=" in where
