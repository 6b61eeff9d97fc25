"""A real browser, without a window, and the web page of a broker with a bad night behind it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import uvicorn

from celery_redis_plus.admin.broker_admin import BrokerAdmin
from celery_redis_plus.cli.web.access import Access
from celery_redis_plus.cli.web.app import make_app
from celery_redis_plus.cli.web.bulk_actions import BulkActions
from celery_redis_plus.cli.web.connection import SharedConnection
from celery_redis_plus.cli.web.samples import INTERVAL_S, KEPT, Sampler, Samples
from celery_redis_plus.cli.web.server import listen
from tests.docs.incident_recording import incident
from tests.integration.transport.conftest import connect, connection  # noqa: F401
from tests.support.dead_letters import dead_letters_of
from tests.support.inbox import Inbox, declare, publish
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import redis

    from tests.browser.browser import Browser

TOKEN = "a-token-of-the-tests"
#: Messages of the flood that the lines show, and dead letters.
FLOOD, DEAD = 300, 12


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-screenshots", action="store_true", help="write the screenshots of docs/web.md and docs/spark.md")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; skip where it is not installed."""
    pytest.importorskip("selenium", reason="selenium is not installed: tox -e browser")
    from tests.browser.browser import Browser

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium here; Debian: apt-get install chromium chromium-driver")
    with Browser(program, driver) as started:
        yield started


@pytest.fixture
def night(broker_url: str, connect) -> None:  # noqa: F811
    """Queues after a flood, a forgotten pause and a task that always fails."""
    channel = connect().channel()
    declare(channel, "invoices", "mails")
    worker = Inbox(connect().channel(), "orders", ack=False, prefetch=DEAD)
    for number in range(DEAD):
        publish(channel, "orders", {"amount": number}, headers={"task": "shop.refund", "id": f"refund-{number}"})
    worker.drain(DEAD)
    for message in worker.messages:
        message.reject()
    publish(channel, "orders", *[{"tenant": 7}] * FLOOD, headers={"task": "tenant7.import", "id": "import-1"})
    worker.drain(DEAD + DEAD)
    for number in range(3):
        headers = {"task": "shop.remind", "id": f"remind-{number}", "x-delay": 3_600_000 * (number + 1)}
        publish(channel, "mails", "x" * 200, headers=headers)
    publish(channel, "invoices", *range(40), headers={"task": "shop.invoice", "id": "invoice-1"})
    letters = dead_letters_of(channel)
    wait_until(lambda: letters.count("orders") == DEAD)
    with BrokerAdmin(broker_url) as admin:
        admin.pause("invoices", "the database moves")


@pytest.fixture
def login_url(broker_url: str, night: None) -> Iterator[str]:
    """The web page after that night, with ten minutes of samples."""
    with served(broker_url) as url:
        yield url


@pytest.fixture
def incident_url(broker_url: str, redis_client: redis.Redis) -> Iterator[str]:
    """The web page of the broker of docs/incidents.md: a poison task, a forgotten pause, a frozen worker, a flood."""
    with incident(broker_url, redis_client), served(broker_url) as url:
        yield url


@contextmanager
def served(broker_url: str, *, sampled: bool = False) -> Iterator[str]:
    """Serve the page behind a real port, and give the URL to log in with; its samples are made up, or `sampled`."""
    shared, samples = SharedConnection(lambda: BrokerAdmin(broker_url)), Samples()
    if not sampled:
        _fill(samples, shared.admin())
    sampler = Sampler(samples, shared.admin) if sampled else nullcontext()
    bulk = BulkActions()
    with listen("127.0.0.1", 0) as listener, sampler:
        port = listener.getsockname()[1]
        app = make_app(shared.admin, samples, Access(TOKEN, port), bulk, "redisplus://broker:6379/0")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{port}/login?token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join()
            bulk.close()
            shared.close()


def _fill(samples: Samples, admin: BrokerAdmin) -> None:
    """Make the samples of ten minutes in which the queues came to what they are, in waves."""
    overviews = admin.overview()
    for step in range(KEPT):
        part, wave = (step + 1) / KEPT, 1 - 0.03 * (step % 9)
        then = [
            replace(
                one, ready=round(one.ready * part**2 * wave), published=round(one.published * part),
                delivered=round(one.delivered * part),
            )
            for one in overviews
        ]  # fmt: skip
        samples.add(then, step * INTERVAL_S)
