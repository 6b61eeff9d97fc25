"""What `assert_enqueued` finds, and how it says that it found nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_redis_plus.testing import assert_enqueued, enqueued


def test_tasks_are_found_by_what_is_asked(add):
    add.delay(1, y=2)
    add.apply_async(((1, 2),), queue="other", countdown=60)
    assert_enqueued(add)
    assert_enqueued("add", args=[1], kwargs={"y": 2}, queue="celery", eta=0)
    found = assert_enqueued(add, args=((1, 2),), queue="other", eta=timedelta(minutes=1))
    assert_enqueued(add, eta=found.eta)
    assert_enqueued(add, eta=datetime.now(UTC) + timedelta(minutes=1), queue="other")
    assert [one.args for one in enqueued(add)] == [[1], [[1, 2]]]


def test_tasks_whose_arguments_cannot_be_read_disturb_no_others(add, app):
    add.delay("x" * 1_100_000)
    add.apply_async(({1, 2},), serializer="pickle")
    add.delay(7)
    assert_enqueued(add, args=(7,))
    with pytest.raises(AssertionError, match="not decoded"):
        assert_enqueued(add, args=(object(),))
    app.conf.accept_content = ["json", "pickle"]
    assert_enqueued(add, args=({1, 2},))


@pytest.mark.parametrize(
    "wrong", [{"args": (2,)}, {"kwargs": {}}, {"queue": "other"}, {"eta": 60}, {"eta": datetime(2030, 1, 1, tzinfo=UTC)}]
)
def test_another_task_is_not_taken_for_it(add, wrong):
    add.delay(1, y=2)
    with pytest.raises(AssertionError):
        assert_enqueued(add, **wrong)


def test_the_error_lists_what_waits(add, app):
    add.delay(1, y="a")
    add.apply_async((3,), countdown=90, queue="other")
    with pytest.raises(AssertionError) as raised:
        assert_enqueued("subtract", args=(1,), queue="celery", app=app)
    lines = str(raised.value).splitlines()
    assert lines[0] == "no task subtract waits with args=(1,), queue='celery'. Tasks that wait:"
    assert lines[1] == "  add(1, y='a')  in queue 'celery', ready"
    assert lines[2].startswith("  add(3)  in queue 'other', due 20")
    assert " UTC, countdown " in lines[2]


def test_the_error_says_that_nothing_waits(add):
    with pytest.raises(AssertionError, match=r"^no task add waits. Tasks that wait: none$"):
        assert_enqueued(add)


def test_looking_takes_nothing(add):
    add.delay(1)
    assert enqueued(add) == enqueued(add)
