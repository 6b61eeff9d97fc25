"""A task that is rejected or ignored leaves nothing in memory that only the collector would find."""

import gc
import logging
import weakref

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject

from celery_redis_plus import configure_app


class Rejected(Reject):
    """Of a class in Python, so that it can be watched."""


class Ignored(Ignore):
    """The same."""


class CauseError(Exception):
    """What the task itself met."""


@pytest.fixture
def app():
    app = configure_app(Celery("app", broker="redisplus://", set_as_current=False))
    app.conf.task_ignore_result = True
    yield app
    app.close()


@pytest.fixture
def _nothing_else():
    """No collector, and no log of pytest's, which keeps exceptions."""
    gc.collect()
    gc.disable()
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


@pytest.mark.usefixtures("_nothing_else")
@pytest.mark.parametrize("end", [Rejected, Ignored])
@pytest.mark.parametrize("has_cause", [False, True])
def test_the_exception_is_gone_with_the_result(app, end, has_cause):
    seen = []

    @app.task(name="t", shared=False)
    def task():
        try:
            raise CauseError  # noqa: TRY301 - a task that does all itself
        except CauseError as cause:
            error = end(*[cause] * has_cause)
            seen.extend(map(weakref.ref, (cause, error)))
            raise error from (cause if has_cause else None)

    result = build_tracer("t", task, app=app)("id", (), {}, {"id": "id", "delivery_info": {}})
    assert result.info.state in {"REJECTED", "IGNORED"}
    del result
    assert [ref() for ref in seen] == [None, None]
