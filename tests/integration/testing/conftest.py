"""An app under test on the shared server, as the fixture `redisplus_app` has it."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_redis_plus.testing import pointed_at
from tests.support.apps import plain_url


@pytest.fixture
def app(broker_url):
    tested = Celery("tested", broker="redis://production.example/0", set_as_current=False)
    with pointed_at(tested, broker_url, plain_url(broker_url, 1)):
        yield tested


@pytest.fixture
def add(app):
    @app.task(name="add", shared=False)
    def add(x, y=0):
        return x + y

    return add
