"""The fixtures for users, in a pytest run of its own as a user has it."""

import subprocess
import sys

USER_TEST = """
from celery import Celery


def test_first_message(redisplus_url):
    with Celery(broker=redisplus_url).connection_for_write() as connection:
        connection.SimpleQueue("orders").put("a")


def test_second_test_finds_an_empty_database(redisplus_url, redisplus_server):
    with redisplus_server.client() as client:
        assert client.dbsize() == 0
"""


def test_fixtures_give_each_test_an_empty_database(tmp_path):
    (tmp_path / "test_user.py").write_text(USER_TEST)

    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "celery_redis_plus.testing.fixtures",
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
