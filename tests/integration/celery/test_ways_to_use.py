"""Every way to name the broker, in a process that only publishes and in a worker (issue A, "Ways to use it").

The workers start side by side, each on a queue of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kombu import pools

from tests.integration.celery.app import make_app
from tests.integration.celery.fleet import START_S, Ship, fleet
from tests.support.apps import JOURNAL_DB
from tests.support.program import run_python
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

    from tests.support.servers import Server
    from tests.support.workers import Worker

#: way -> how the app is set up (see `make_app`), its URL (`{}` is host, port and database), further settings
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "redisplus-alone": ("alone", "redisplus://{}", {}),
    "valkey-alone": ("alone", "valkey://{}", {}),
    "redisplus": ("configured", "redisplus://{}", {}),
    "redis": ("configured", "redis://{}", {}),
    "valkey": ("configured", "valkey://{}", {}),
    "import-path": ("configured", "celery_redis_plus.transport:Transport://{}", {}),
    "broker_transport": ("transport", "redis://{}", {}),
    "configured-before-its-settings": ("before", "redis://{}", {}),
    "failover": ("configured", "redis://127.0.0.1:1/0;redis://{}", {}),
    "read-and-write-url": ("configured", "redis://127.0.0.1:1/0", {"broker_read_url": "{}", "broker_write_url": "{}"}),
}
#: Ways that go by what kombu finds when it is loaded: no process may have loaded us before.
FRESH = {"redisplus-alone", "valkey-alone", "import-path"}


def way(name: str, server: Server) -> tuple[str, str, dict[str, Any]]:
    setup, url, config = WAYS[name]
    place = server.url().partition("://")[2]
    urls = {key: f"redis://{value.format(place)}" for key, value in config.items()}
    return setup, url.format(place), {**urls, "task_default_queue": f"way-{name}", "broker_connection_timeout": 1}


@pytest.fixture(scope="module")
def workers(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    ships = {}
    for name in WAYS:
        setup, url, config = way(name, server)
        ships[name] = Ship(url, setup, config=config, forked=name not in FRESH)
    with fleet(server, tmp_path_factory.mktemp("ways"), ships) as started:
        yield started


@pytest.fixture
def journal(server: Server) -> Iterator[redis.Redis]:
    with server.client(JOURNAL_DB) as client:
        yield client


@pytest.mark.not_on("all", reason="the ways name one server")
@pytest.mark.parametrize("name", WAYS)
def test_task_reaches_a_worker(name, server, workers, journal):
    setup, url, config = way(name, server)
    with make_app(setup, url, config) as app:
        app.send_task("c.note", [name, "done"])
        scheme = app.connection_for_write().transport_cls
    pools.reset()
    worker = workers[name]
    wait_until(lambda: journal.lrange(f"{name}:done", 0, -1) == [b"done"], START_S, worker.tail)

    assert scheme in {"redisplus", "valkey"}
    assert "celery-redis-plus " in worker.log()
    with server.client() as client:
        assert not client.exists(f"way-{name}")  # where kombu's own transport would have put it


def test_process_that_only_publishes_needs_no_import_and_loads_no_worker(server):
    printed = run_python(
        "import sys\n"
        "from celery import Celery\n"
        f"app = Celery('web', broker={server.url()!r})\n"
        "app.send_task('nobody', queue='web-only')\n"
        "print('celery.worker.consumer' in sys.modules, 'celery_redis_plus.integration' in sys.modules)"
    )

    assert printed == "False False"
    with server.client() as client:
        assert client.zcard("queue:{web-only}") == 1


def test_plain_kombu_needs_one_import_and_loads_no_celery(server):
    printed = run_python(
        "import sys\n"
        "import celery_redis_plus\n"
        "from kombu import Connection\n"
        f"with Connection({server.url()!r}) as connection:\n"
        "    queue = connection.SimpleQueue('plain')\n"
        "    queue.put({'to': 'world'})\n"
        "    letter = queue.get(timeout=5)\n"
        "    letter.ack()\n"
        "    queue.close()\n"
        "print(letter.payload, 'celery' in sys.modules)"
    )

    assert printed == "{'to': 'world'} False"
