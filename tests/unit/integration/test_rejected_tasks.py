"""A task that is rejected or ignored leaves nothing in memory that only the collector would find."""

import gc
import logging
import traceback
import weakref

import pytest
from celery import Celery
from celery.app.trace import build_tracer, fast_trace_task
from celery.exceptions import Ignore, Reject

from celery_redis_plus import configure_app
from celery_redis_plus.integration.rejected_tasks import install_traceback_cleaner


class Rejected(Reject):
    """Of a class in Python, so that it can be watched."""


class Ignored(Ignore):
    """The same."""


class CauseError(Exception):
    """What the task itself met."""


@pytest.fixture
def app():
    app = configure_app(Celery("app", broker="redisplus://", set_as_current=False))
    install_traceback_cleaner()
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

    trace = build_tracer("t", task, app=app)
    result = trace("id", (), {}, {"id": "id", "delivery_info": {}})
    assert result.info.state in {"REJECTED", "IGNORED"}
    [first, *_] = [ref() for ref in seen][-1:]
    assert "raise error" in "".join(traceback.format_exception(first))
    del result, first
    end_of_next = len(seen)
    trace("next", (), {}, {"id": "next", "delivery_info": {}})
    assert [ref() for ref in seen[:end_of_next]] == [None, None]


@pytest.mark.usefixtures("_nothing_else")
def test_the_exception_is_gone_in_a_pool_process_whose_call_had_the_result(app):
    seen = []

    @app.task(name="t", shared=False)
    def task():
        error = Rejected()
        seen.append(weakref.ref(error))
        raise error

    task.__trace__ = build_tracer("t", task, app=app)
    for number in range(2):
        fast_trace_task(
            "t", str(number), {"id": str(number), "delivery_info": {}}, ((), {}, {}), None, None, _loc=({"t": task}, [], "h")
        )
    assert seen[0]() is None


def test_the_traceback_of_a_task_that_fails_around_a_rejected_one_is_whole(app):
    app.conf.task_store_eager_result = False

    @app.task(name="compensate", shared=False)
    def compensate():
        raise Rejected

    @app.task(name="work", shared=False)
    def work():
        try:
            raise CauseError  # noqa: TRY301 - a task that does all itself
        except CauseError:
            compensate.apply()
            compensate.apply()
            raise

    result = work.apply()
    assert "in work" in result.traceback
    assert result.result.__traceback__ is not None


def test_an_exception_that_refuses_attributes_is_no_problem(app, caplog):
    class Stale(Ignore):
        def __setattr__(self, name, value):
            raise AttributeError(name)

    @app.task(name="stale", shared=False)
    def stale():
        raise Stale

    for _ in range(2):
        assert stale.apply().state == "IGNORED"
    assert "handler" not in caplog.text
