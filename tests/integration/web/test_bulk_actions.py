"""Actions on many messages from the web page: dead letters are replayed or deleted, waiting messages moved or cancelled."""

from __future__ import annotations

import html
import threading

import pytest

from celery_redis_plus.broker.dead_letters import search
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.errors import ServerUnavailable
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(search, "DEAD_LETTER_PAGE", 2)


@pytest.fixture
def held(monkeypatch):
    """Let each page of a replay wait for `held.release()`, like a semaphore."""
    pages = threading.Semaphore(0)
    replay_all = DeadLetters.replay_all

    def wait(self, replays):
        assert pages.acquire(timeout=30)
        return replay_all(self, replays)

    monkeypatch.setattr(DeadLetters, "replay_all", wait)
    return pages


def shows(page, text, path="/dead-letters", **parameters):
    parameters = parameters or {"queue": "q"}
    wait_until(
        lambda: text in html.unescape(page.get(path, **parameters).text), message=lambda: page.get(path, **parameters).text
    )


def test_all_of_a_task_are_replayed(page, channel, dead):
    inbox = Inbox(channel, "q", ack=False)
    for task in ("shop.pay", "shop.refund", "mail.send"):
        publish(channel, "q", task, task, headers={"task": task, "id": "1"})
    for message in inbox.drain(6) and inbox.messages:
        message.reject()
    inbox.cancel()
    wait_until(lambda: dead_letters_of(channel).count("q") == 6)
    assert "has begun" in page.post("/dead-letters/replay-many", {"task": "shop.*", "reason": "rejected"}, queue="q").text
    shows(page, "is over")
    shows(page, "4 are back to work.")
    assert sorted(Inbox(channel, "q").exactly(4)) == ["shop.pay", "shop.pay", "shop.refund", "shop.refund"]
    assert dead_letters_of(channel).count("q") == 2


def test_a_replay_that_is_stopped_ends_behind_its_page_and_another_does_the_rest(page, channel, dead, held):
    dead("q", *range(7))
    page.post("/dead-letters/replay-many", queue="q")
    held.release()
    shows(page, "2 of 7 looked at")
    assert "still goes on" in page.post("/dead-letters/replay-many", queue="q").text
    stopping = threading.Thread(target=page.post, args=("/stop",), kwargs={"page": "/dead-letters", "queue": "q"})
    stopping.start()
    wait_until(lambda: page.bulk.of("/dead-letters", "q").was_stopped)
    held.release(10)
    stopping.join()
    shows(page, "was stopped")
    # The page that was under way is done.
    assert dead_letters_of(channel).count("q") == 3
    page.post("/dead-letters/replay-many", queue="q")
    shows(page, "3 are back to work.")
    assert sorted(Inbox(channel, "q").exactly(7)) == list(range(7))


def test_a_broker_that_fails_ends_a_replay_and_the_page_says_why(page, dead, monkeypatch):
    dead("q", "x", "y")

    def fail(self, replays):
        raise ServerUnavailable("it is <away>")

    monkeypatch.setattr(DeadLetters, "replay_all", fail)
    page.post("/dead-letters/replay-many", queue="q")
    shows(page, "ended early: it is <away>")
    assert "<away>" not in page.get("/dead-letters", queue="q").text
    assert "2 in all" in page.get("/dead-letters", queue="q").text


def test_an_unknown_queue_is_said_and_a_stop_without_a_replay_is_none(page):
    assert page.post("/dead-letters/replay-many", queue="nonesuch").status == 404
    assert page.post("/stop", page="/dead-letters", queue="nonesuch").status == 404
    assert page.post("/stop", page="/elsewhere", queue="q").status == 400


def tasks(channel, queue, *names, **headers):
    for number, task in enumerate(names):
        publish(channel, queue, task, headers={"task": task, "id": f"id-{number}", **headers})


def test_all_dead_letters_of_a_task_are_deleted_and_the_others_stay(page, channel):
    inbox = Inbox(channel, "q", ack=False)
    tasks(channel, "q", "shop.pay", "shop.refund", "mail.send")
    for message in inbox.drain(3) and inbox.messages:
        message.reject()
    inbox.cancel()
    wait_until(lambda: dead_letters_of(channel).count("q") == 3)
    assert "deletion has begun" in page.post("/dead-letters/delete-many", {"task": "shop.*"}, queue="q").text
    shows(page, "2 are deleted.")
    (left,) = dead_letters_of(channel).page("q")
    assert left.headers["task"] == "mail.send"


def test_all_messages_of_a_task_are_moved_ready_and_delayed_ones(page, channel):
    declare(channel, "q", "bulk")
    tasks(channel, "q", "tenant7.import", "shop.pay", "tenant7.import", "tenant7.import")
    tasks(channel, "q", "tenant7.import", **{"x-delay": 3_600_000})
    assert "move has begun" in page.post("/queue/move", {"task": "tenant7.*", "to": "bulk"}, name="q").text
    shows(page, "4 are in queue 'bulk'.", "/queue", name="q")
    assert Inbox(channel, "q").exactly(1) == ["shop.pay"]
    sizes = channel.queue_sizes("bulk")
    assert (sizes.ready, sizes.delayed) == (3, 1)


def test_all_messages_of_a_task_are_cancelled(page, channel):
    declare(channel, "q")
    tasks(channel, "q", "shop.pay", "shop.refund", "shop.pay")
    assert "cancellation has begun" in page.post("/queue/cancel", {"task": "shop.pay"}, name="q").text
    shows(page, "2 are cancelled.", "/queue", name="q")
    assert Inbox(channel, "q").exactly(1) == ["shop.refund"]


@pytest.mark.parametrize(
    ("action", "form", "status", "said"),
    [
        ("move", {"task": "t", "to": "nonesuch"}, 404, "there is no queue"),
        ("move", {"task": "t", "to": "q"}, 400, "name another one"),
        ("move", {"to": "bulk"}, 400, "lacks the task"),
        ("cancel", {"task": " "}, 400, "lacks the task"),
    ],
)
def test_a_form_that_means_nothing_is_refused(page, channel, action, form, status, said):
    declare(channel, "q", "bulk")
    answer = page.post(f"/queue/{action}", form, name="q")
    assert (answer.status, said in answer.text) == (status, True)
