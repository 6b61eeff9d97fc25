import os
import subprocess
import sys

import pytest

from celery_redis_plus.demo import cleanup_process
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_listed_groups_are_killed_and_listed_folders_removed_at_the_end(sleeper, tmp_path):
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)

    cleanup_process.main([f"group {sleeper.pid}\n", f"folder {folder}\n"])

    assert sleeper.wait(PATIENCE_S) == -9
    assert not folder.exists()


def test_a_group_that_has_ended_is_left_alone(sleeper):
    cleanup_process.main([f"group {sleeper.pid}\n", f"ended {sleeper.pid}\n"])

    assert sleeper.poll() is None


def test_what_is_gone_already_is_passed_over(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    ended.wait()

    cleanup_process.main([f"group {ended.pid}\n", f"folder {tmp_path / 'nonesuch'}\n"])


def test_guard_does_it_when_its_pipe_closes(sleeper, tmp_path):
    folder = tmp_path / "with a space"
    folder.mkdir()

    with cleanup_process.CleanupProcess() as watch:
        watch.note("group", sleeper.pid)
        watch.note("folder", folder)
        assert sleeper.poll() is None

    assert sleeper.wait(PATIENCE_S) == -9
    assert not folder.exists()


def test_a_guard_that_was_killed_is_no_failure(sleeper):
    with cleanup_process.CleanupProcess() as watch:
        os.kill(watch.pid, 9)
        for _ in range(3):
            watch.note("group", sleeper.pid)

    assert sleeper.poll() is None
