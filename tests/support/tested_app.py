"""An app in the test's process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_redis_plus.testing import pointed_at
from tests.support.apps import plain_url


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    """An app whose tasks are acked late."""
    tested = Celery("tested", set_as_current=False)
    tested.conf.task_acks_late = True
    with pointed_at(tested, broker_url, plain_url(broker_url, 1)):
        yield tested
