"""What is kept of a task that failed: with its message, in its dead letter, in its events."""

from __future__ import annotations

import json

import pytest

import celery_redis_plus as crp
from celery_redis_plus.broker.consumers.last_error import failure_of
from celery_redis_plus.broker.dead_letters.store import DeadLetters
from celery_redis_plus.cli.main import main
from tests.support.inbox import declare
from tests.support.waiting import wait_until

INDEXED = {"broker_transport_options": {"event_log_index": True, "delivery_limit": 2}}
ERROR = "ValueError: as asked"


@pytest.fixture
def app(life_app):
    return life_app(settings=INDEXED)


@pytest.fixture
def letters(app):
    with app.connection_for_read() as connection:
        session = connection.default_channel.session
        yield DeadLetters(session.commands, session.keys)


@pytest.mark.parametrize(
    ("policy", "how", "reason", "error"),
    [
        ("reject_on_error", "failure", "rejected", ERROR),
        ("nack_on_error", "always", "delivery_limit", ERROR),
        ("ack_after", "rejected", "rejected", "Reject: as asked"),
    ],
)
def test_a_dead_letter_its_message_and_its_events_name_the_exception(  # noqa: PLR0917
    policy, how, reason, error, app, life_worker, letters, paths, broker_url, capsys
):
    worker = life_worker(pool="solo", settings=INDEXED, configured={"ack_policy": policy})
    app.send_task("life.end", [how], task_id="one")
    [letter] = wait_until(lambda: letters.page("celery"), 20, worker.tail)
    assert (letter.reason, letter.failure.text, letter.failure.traceback) == (reason, error, "")
    info = crp.message(app, "one")
    assert (info.state, info.reason, info.error, info.traceback) == ("DEAD", reason, error, None)
    (path,) = paths("celery").values()
    assert (path[-1].event, path[-1].reason, path[-1].error) == ("dead_lettered", reason, error)
    if policy == "nack_on_error":
        assert [event.error for event in path if event.event == "requeued"] == [error]
    assert main(["dead-letters", "list", "--url", broker_url, "celery"]) == 0
    assert error in capsys.readouterr().out
    assert main(["dead-letters", "show", "--json", "--url", broker_url, "celery", letter.tag]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["error"], shown["traceback"], shown["headers"]["x-exception-message"]) == (error, None, error)
    assert main(["dead-letters", "list", "--json", "--url", broker_url, "celery"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] == error


def test_the_end_of_a_traceback_is_kept_where_the_app_allows_it(life_app, life_worker, letters, app):
    settings = {"broker_transport_options": {**INDEXED["broker_transport_options"], "error_traceback_bytes": 100}}
    worker = life_worker(pool="prefork", settings=settings, configured={"ack_policy": "reject_on_error"})
    app.send_task("life.end", ["failure"], task_id="one")
    [letter] = wait_until(lambda: letters.page("celery"), 20, worker.tail)
    assert letter.failure.traceback.splitlines()[-1] == ERROR
    assert "raise error" in letter.failure.traceback
    assert len(letter.failure.traceback) <= 100
    assert crp.message(app, "one").traceback == letter.failure.traceback
    assert letter.death_headers["x-exception-stacktrace"] == letter.failure.traceback


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_task_that_fails_after_its_early_ack_does_not_read_completed(pool, app, life_worker, paths):
    worker = life_worker(pool=pool, concurrency=1, settings=INDEXED)
    app.send_task("life.end", ["failure"], task_id="bad")
    app.send_task("life.end", ["success"], task_id="good")
    wait_until(lambda: getattr(crp.message(app, "bad"), "state", None) == "FAILED", 20, worker.tail)
    bad = crp.message(app, "bad")
    assert (bad.reason, bad.error) == ("failure", ERROR)
    wait_until(lambda: getattr(crp.message(app, "good"), "state", None) == "COMPLETED", 20, worker.tail)
    ends = sorted([event.event for event in path][2:] for path in paths("celery").values())
    assert ends == [["acked"], ["acked", "failed"]]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_retry_after_an_early_ack_reads_retried(pool, app, life_worker, paths):
    worker = life_worker(pool=pool, concurrency=1, settings=INDEXED)
    app.send_task("life.end", ["retry"], task_id="again")

    def ends():
        return sorted(str(event.reason) for path in paths("celery").values() for event in path if event.event == "failed")

    wait_until(lambda: ends() == ["retry"], 20, worker.tail)
    wait_until(lambda: getattr(crp.message(app, "again"), "state", None) == "COMPLETED", 20, worker.tail)
    first = min(paths("celery"))
    assert (crp.message(app, first).state, crp.message(app, first).reason) == ("RETRIED", "retry")


def test_a_replayed_message_starts_without_its_exception(app, life_worker, letters):
    worker = life_worker(pool="solo", settings=INDEXED, configured={"ack_policy": "reject_on_error"})
    app.send_task("life.end", ["failure"], task_id="one")
    [letter] = wait_until(lambda: letters.page("celery"), 20, worker.tail)
    worker.stop()
    assert letters.replay(letter)
    assert crp.message(app, "one").state == "PENDING"
    assert crp.message(app, letter.tag).error is None


@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 5}], ids=["", "limited"])
def test_the_event_of_an_ack_tells_how_the_work_ended(arguments, app, paths):
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        declare(channel, "q", arguments=arguments)
        channel.basic_publish(channel.prepare_message("m"), routing_key="q")
        message = channel.basic_get("q")
        message.note_outcome("failure", failure_of("ValueError", "as asked"))
        message.ack()
        wait_until(lambda: not channel.queue_sizes("q").unacked)
    (path,) = paths("q").values()
    assert (path[-1].event, path[-1].reason, path[-1].error) == ("acked", "failure", ERROR)
