"""Replays of many dead letters from the web page."""

from __future__ import annotations

import threading

import pytest

from celery_redis_plus.broker.dead_letters import search
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.errors import ServerUnavailable
from tests.support.inbox import Inbox, publish
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


def shows(page, text):
    wait_until(
        lambda: text in page.get("/dead-letters", queue="q").text, message=lambda: page.get("/dead-letters", queue="q").text
    )


def test_all_of_a_task_are_replayed(page, channel, dead):
    inbox = Inbox(channel, "q", ack=False)
    for task in ("shop.pay", "shop.refund", "mail.send"):
        publish(channel, "q", task, task, headers={"task": task, "id": "1"})
    for message in inbox.drain(6) and inbox.messages:
        message.reject()
    inbox.cancel()
    wait_until(lambda: channel.session.dead_letters.count("q") == 6)
    assert "has begun" in page.post("/dead-letters/replay-many", {"task": "shop.*", "reason": "rejected"}, queue="q").text
    shows(page, "is over")
    shows(page, "4 are back to work.")
    assert sorted(Inbox(channel, "q").exactly(4)) == ["shop.pay", "shop.pay", "shop.refund", "shop.refund"]
    assert channel.session.dead_letters.count("q") == 2


def test_a_replay_that_is_stopped_ends_behind_its_page_and_another_does_the_rest(page, channel, dead, held):
    dead("q", *range(7))
    page.post("/dead-letters/replay-many", queue="q")
    held.release()
    shows(page, "2 of 7 looked at")
    assert "still goes on" in page.post("/dead-letters/replay-many", queue="q").text
    stopping = threading.Thread(target=page.post, args=("/dead-letters/stop",), kwargs={"queue": "q"})
    stopping.start()
    wait_until(lambda: page.replays.of("q").was_stopped)
    held.release(10)
    stopping.join()
    shows(page, "was stopped")
    # The page that was under way is done.
    assert channel.session.dead_letters.count("q") == 3
    page.post("/dead-letters/replay-many", queue="q")
    shows(page, "3 are back to work.")
    assert sorted(Inbox(channel, "q").exactly(7)) == list(range(7))


def test_a_broker_that_fails_ends_a_replay_and_the_page_says_why(page, dead, monkeypatch):
    dead("q", "x", "y")

    def fail(self, replays):
        raise ServerUnavailable("it is <away>")

    monkeypatch.setattr(DeadLetters, "replay_all", fail)
    page.post("/dead-letters/replay-many", queue="q")
    shows(page, "ended early: it is &lt;away&gt;")
    assert "2 in all" in page.get("/dead-letters", queue="q").text


def test_an_unknown_queue_is_said_and_a_stop_without_a_replay_is_none(page):
    assert page.post("/dead-letters/replay-many", queue="nonesuch").status == 404
    assert page.post("/dead-letters/stop", queue="nonesuch").status == 404
