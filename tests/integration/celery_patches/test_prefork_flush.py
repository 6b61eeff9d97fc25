"""What a prefork pool does with jobs when the connection to the broker was lost: `Consumer.on_close` flushes it."""

import time
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool

from celery_redis_plus.integration.prefork_pool import install_prefork_guard, messages_in
from tests.support.hubs import current_hub
from tests.support.waiting import wait_until


class Request:
    """What gives a pool its callbacks, as Celery's request does."""

    def __init__(self):
        self.message = SimpleNamespace()
        self.accepted = 0
        self.results = []

    def on_accepted(self, pid, time_accepted):
        self.accepted += 1

    def on_success(self, result):
        self.results.append(result)


def work(path, seconds):
    """Runs in a child."""
    path.touch()
    time.sleep(seconds)
    return "done"


@pytest.fixture
def hub():
    with current_hub() as hub:
        yield hub


@pytest.fixture
def pool(hub):
    app = Celery("flush", broker="memory://", set_as_current=False)
    pool = TaskPool(1, threads=False, putlocks=False, app=app, initargs=(app, "flush"))
    pool.start()
    pool.register_with_event_loop(hub)
    install_prefork_guard(pool)
    yield pool
    pool.terminate()
    app.close()


def turn(hub, condition):
    """Let the loop turn until it holds."""

    def turned():
        hub.run_once()
        return condition()

    wait_until(turned, 20)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_job_that_a_child_has_and_the_parent_does_not_know_of_is_kept(hub, pool, tmp_path):
    running, waiting = Request(), Request()
    for request, name in ((running, "a"), (waiting, "b")):
        pool.apply_async(work, (tmp_path / name, 0.5), accept_callback=request.on_accepted, callback=request.on_success)
    cache = pool._pool._cache  # noqa: SLF001 - as Celery names it
    turn(hub, lambda: any(job._write_to for job in cache.values()))  # noqa: SLF001 - as billiard names it
    # The loop stands still: the child's word waits unread.
    wait_until((tmp_path / "a").exists, 20)
    assert running.accepted == 0
    pool.flush()

    assert messages_in(pool) == {id(running.message)}
    turn(hub, lambda: running.results == ["done"])
    assert running.accepted == 1
    assert not cache
    assert waiting.accepted == 0
    assert not (tmp_path / "b").exists()
