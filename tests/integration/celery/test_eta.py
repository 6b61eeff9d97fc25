"""What becomes of a task's eta on the way to the broker."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_redis_plus.errors import InvalidEta

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
