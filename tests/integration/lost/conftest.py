"""Consumer processes and Celery workers on a server of the test's own, with a short grace."""

import pytest

from tests.integration.transport.conftest import connect  # noqa: F401
from tests.support.apps import JOURNAL_DB, make_app
from tests.support.consuming import consumers

GRACE_S = 1


@pytest.fixture
def own_server(start_server):
    """One that keeps its data over a restart."""
    return start_server({"appendonly": "yes"})


@pytest.fixture
def crew(own_server, tmp_path):
    with own_server.client(JOURNAL_DB) as journal, consumers(own_server.url(), journal, tmp_path) as crew:
        yield crew


@pytest.fixture
def client(own_server):
    with own_server.client(decode_responses=True) as client:
        yield client


@pytest.fixture
def journal(own_server):
    """What tasks have noted: `started:NAME` when they begin, `NAME` when they end."""
    with own_server.client(JOURNAL_DB, decode_responses=True) as client:
        yield lambda name: client.lrange(f"ran:{name}", 0, -1)


@pytest.fixture
def worker(own_server, start_worker):
    """Start a Celery worker: `worker(pool="solo", prefetch=4, visibility_timeout=3)`.

    It consumes from `url`; what its tasks note goes to the server itself.
    """

    def start(url=None, *, pool="threads", concurrency=2, prefetch=1, **options):
        config = {
            "task_acks_late": True,
            "worker_prefetch_multiplier": prefetch,
            "broker_transport_options": {"connection_lost_grace": GRACE_S, **options},
        }
        if url:
            config["broker_read_url"] = url
        env = {"CRP_TEST_CONFIG": repr(config)}
        return start_worker(broker=own_server.url(), pool=pool, concurrency=concurrency, env=env)

    return start


@pytest.fixture
def send(own_server):
    """Send tasks that sleep: `send("name", count, sleep_s)`."""
    app = make_app(own_server.url())

    def send_tasks(name, count, sleep_s):
        for number in range(count):
            app.send_task("tests.note", [name, str(number)], {"sleep_s": sleep_s})

    yield send_tasks
    app.close()
