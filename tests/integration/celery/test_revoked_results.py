"""A task whose message is taken out of the broker is REVOKED for everybody who waits for it, also where no worker runs."""

from __future__ import annotations

from unittest import mock

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import allow_join_result

import celery_redis_plus
from tests.support.apps import JOURNAL_DB, close_results
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def config(server):
    return {"result_backend": server.url(JOURNAL_DB, "redis")}


@pytest.fixture
def app(celery_app, config):
    app = celery_redis_plus.configure_app(celery_app(**config), revoke_removes=True)
    yield app
    close_results(app)


@pytest.mark.parametrize("protocol", [2, 1])
@pytest.mark.parametrize("how", ["revoke", "cancel", "cancel to the dead letters"])
def test_the_result_of_a_removed_task_says_so_without_a_worker(app, how, protocol):
    app.conf.task_protocol = protocol
    result = app.send_task("c.add", [1, 1], countdown=60)
    if how == "revoke":
        result.revoke()
    elif protocol == 2:
        assert celery_redis_plus.cancel(app, result.id, dead_letter=how != "cancel")
    else:
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            [waiting] = celery_redis_plus.browse("celery", connection=channel)
        assert celery_redis_plus.cancel(app, waiting.tag, dead_letter=how != "cancel")
    if how == "revoke" and protocol == 1:
        # Its id is in the body, which no search reads: it stays in the broker, and its worker discards it.
        assert result.state == "PENDING"
        return
    with pytest.raises(TaskRevokedError, match="revoked"), allow_join_result():
        result.get(timeout=PATIENCE_S)


def test_a_chord_hears_of_a_member_that_was_removed(app, config, celery_worker):
    late = app.signature("c.add", args=(1, 1)).set(countdown=60, task_id="late")
    body = chord([late, app.signature("c.add", args=(2, 2))], app.signature("c.add", args=(0,)), app=app).apply_async()
    app.control.revoke("late")
    celery_worker(pool="solo", config=config)
    with pytest.raises((ChordError, TaskRevokedError)), allow_join_result():
        body.get(timeout=10)


def test_a_result_backend_that_is_away_keeps_no_message_from_being_removed(celery_app, caplog):
    app = celery_app(result_backend="cache+memory://")
    result = app.send_task("c.add", [1, 1], countdown=60)
    [waiting] = celery_redis_plus.browse("celery", connection=app)
    assert waiting.headers["id"] == result.id
    with mock.patch.object(app.backend, "mark_as_revoked", side_effect=ConnectionError("away")):
        assert celery_redis_plus.cancel(app, result.id)
    assert f"the message {waiting.tag} of queue 'celery' is removed, and its result is not REVOKED" in caplog.text
