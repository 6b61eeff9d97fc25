"""What becomes of a task's eta on the way to the broker."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_redis_plus.errors import InvalidEta
from tests.support.waiting import wait_until

DELAYED = "delayed:{celery}"


def held_until(client):
    [(_, score)] = client.zrange(DELAYED, 0, -1, withscores=True)
    return score / 1000


@pytest.mark.parametrize("setup", ["alone", "configured"])
def test_eta_is_held_to_the_millisecond(setup, celery_app, redis_client):
    eta = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1, microseconds=123_001)
    celery_app(setup).send_task("c.add", [1, 2], eta=eta)

    assert held_until(redis_client) == (eta + timedelta(microseconds=999)).timestamp()


@pytest.mark.parametrize("setup", ["alone", "configured"])
def test_naive_eta_is_utc(setup, celery_app, redis_client):
    naive = (datetime.now(UTC) + timedelta(days=1)).replace(tzinfo=None, microsecond=0)
    celery_app(setup).send_task("c.add", [1, 2], eta=naive)

    assert held_until(redis_client) == naive.replace(tzinfo=UTC).timestamp()


def test_naive_eta_is_local_time_without_enable_utc(celery_app, redis_client):
    app = celery_app("configured", enable_utc=False, timezone="Asia/Tokyo")
    naive = (datetime.now(UTC) + timedelta(days=1)).replace(tzinfo=None, microsecond=0)
    app.send_task("c.add", [1, 2], eta=naive)

    assert held_until(redis_client) == naive.replace(tzinfo=UTC).timestamp() - 9 * 3600


@pytest.mark.parametrize("setup", ["alone", "configured"])
@pytest.mark.parametrize("eta", ["tomorrow", "-1", datetime(1969, 1, 1, tzinfo=UTC)])
def test_eta_that_is_no_time_is_refused_by_name_and_nothing_is_stored(setup, eta, celery_app, redis_client):
    shown = eta if isinstance(eta, str) else eta.isoformat()
    with pytest.raises(InvalidEta, match=shown.replace("+", r"\+")):
        celery_app(setup).send_task("c.add", [1, 2], eta=eta)

    assert redis_client.keys("message:*") == []


def test_ready_tasks_that_had_a_countdown_run_without_a_pause(celery_app, celery_worker, redis_client):
    """Celery raises the prefetch count for each of them, and lowers it again: what was claimed meanwhile waits for an ack."""
    app = celery_app("configured")
    for number in range(60):
        app.send_task("c.note", ("n", str(number)), countdown=0.2)
    wait_until(lambda: held_until_all(redis_client) < datetime.now(UTC).timestamp())
    config = {"worker_prefetch_multiplier": 1}
    celery_worker("configured", config=config, pool="threads", concurrency=1).wait_until_ready()
    # A loop that nobody wakes sleeps for two seconds: 20 s.
    wait_until(lambda: not redis_client.exists(DELAYED, "queue:{celery}", "messages_index:{celery}"), timeout_s=8)


def held_until_all(client):
    return max(score for _, score in client.zrange(DELAYED, 0, -1, withscores=True)) / 1000


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_countdown_goes_by_the_server_s_clock(hours, celery_app, redis_client, monkeypatch):
    app = celery_app("configured")
    monkeypatch.setattr(app, "now", lambda: datetime.now(UTC) + timedelta(hours=hours))
    for publish in (app.tasks["c.add"].apply_async, app.tasks["c.add"].s().apply_async):
        publish((1, 2), countdown=60.5)
        [(tag, score)] = redis_client.zrange(DELAYED, 0, -1, withscores=True)
        seconds, microseconds = redis_client.time()
        assert score / 1000 - seconds - microseconds / 1e6 == pytest.approx(60.5, abs=10)
        redis_client.zrem(DELAYED, tag)


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_what_is_due_by_the_server_runs_in_a_worker_whose_clock_is_behind(pool, celery_app, celery_worker, notes, redis_client):
    worker, app = celery_worker(pool=pool), celery_app()
    app.send_task("c.note", ["due", "1"], countdown=3600)
    (tag,) = redis_client.zrange("delayed:{celery}", 0, -1)
    # As if the server's clock were an hour ahead.
    redis_client.zadd("delayed:{celery}", {tag: 1})
    redis_client.zadd("schedule_wakeup:{celery}", {"due": 0})
    assert notes.wait_for("due", 1, 20, worker.tail) == {"1": 1}
