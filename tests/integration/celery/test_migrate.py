"""`celery migrate`: between databases, and what stays behind."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def migrate(source, target):
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-b", source, "migrate", "-a", "-t", "1", source, target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


# The hook of `celery migrate` comes with our transport, which kombu loads early for URLs without a `+` only.
@pytest.mark.not_on("sentinel", "sentinel-tls", "unix", reason="both URLs have a `+`: the migration begins before it is wrapped")
def test_delayed_tasks_that_a_migration_leaves_behind_are_named(server, celery_app, broker_url, redis_client):
    app = celery_app()
    app.send_task("c.add", (1, 2))
    for _ in range(3):
        app.send_task("c.add", (1, 2), countdown=100)
    said = migrate(broker_url, server.url(1))

    assert f"takes ready messages only: queue 'celery' of {broker_url.partition('://')[0]}://" in said
    assert "still holds 3 delayed message(s)" in said
    assert redis_client.zcard("delayed:{celery}") == 3
    with server.client(1) as client:
        assert client.zcard("queue:{celery}") == 1


def test_a_migration_that_leaves_nothing_behind_says_nothing(server, celery_app, broker_url):
    celery_app().send_task("c.add", (1, 2))

    assert "ready messages" not in migrate(broker_url, server.url(1))
