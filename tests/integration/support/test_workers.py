"""The worker helper itself, on kombu's own transport, so that only the helper can fail here."""

import os
import signal

import pytest

from tests.support.apps import Journal, make_app, plain_url
from tests.support.waiting import wait_until
from tests.support.workers import Worker


@pytest.fixture
def plain_broker(broker_url):
    return plain_url(broker_url)


@pytest.fixture
def journal(plain_broker):
    journal = Journal(plain_broker)
    yield journal
    journal.close()


@pytest.fixture
def app(plain_broker):
    app = make_app(plain_broker)
    yield app
    app.close()


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "executed"])
def test_worker_runs_a_task_and_stops_warmly(forked, plain_broker, app, start_worker, journal):
    worker = start_worker(broker=plain_broker, pool="solo", forked=forked, quiet=False)
    app.send_task("tests.note", ["n", "done"])
    wait_until(lambda: journal.read("n") == ["done"], message=worker.tail)

    assert worker.stop() == 0
    assert not worker.running


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "executed"])
def test_worker_leads_its_session_and_its_status_names_the_signal_that_ended_it(forked, plain_broker, start_worker):
    worker = start_worker(broker=plain_broker, pool="solo", forked=forked)
    assert os.getsid(worker.pid) == worker.pid

    worker.signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL


def test_killed_worker_leaves_no_process_of_its_pool(plain_broker, start_worker):
    worker = start_worker(broker=plain_broker, pool="prefork", concurrency=2)
    group = worker.pid
    worker.kill()

    def is_gone():
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone)


def test_worker_that_ends_at_once_is_told_with_its_log(tmp_path):
    with pytest.raises(RuntimeError, match="nonesuch_module"):
        Worker("nonesuch_module", tmp_path, pool="solo").start()


def test_log_of_the_worker_is_noted_on_the_error(plain_broker, tmp_path):
    worker = Worker("tests.support.apps", tmp_path, broker=plain_broker, pool="solo")
    with pytest.raises(ValueError, match="mine") as caught, worker:
        raise ValueError("mine")

    assert "ready." in caught.value.__notes__[0]
    assert not worker.running


def test_signal_to_an_ended_worker_is_harmless(plain_broker, start_worker):
    worker = start_worker(broker=plain_broker, pool="solo")
    worker.kill()
    worker.signal(signal.SIGTERM)

    assert not worker.running
