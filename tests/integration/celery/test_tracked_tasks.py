"""`task.apply_async(track=True, ack_timeout=…)`: the handle of a delivery tells when the work has ended."""

import json

import celery
import pytest
from celery.exceptions import Reject

import celery_redis_plus
from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.testing import running_worker
from tests.support.waiting import PATIENCE_S


def test_a_tracked_task_is_complete_when_it_has_ended(app):
    seen = []

    @app.task(name="work", shared=False)
    def work():
        seen.append(dict(result.delivery.outcomes()))

    result = work.apply_async(track=True, ack_timeout=60)
    assert result.delivery.outcomes() == {"celery": "pending"}
    with running_worker(app):
        assert result.delivery.wait(30)
    assert seen == [{"celery": "delivered"}]
    assert result.delivery.complete
    assert result.get(timeout=PATIENCE_S) is None
    assert celery_redis_plus.delivery(result.delivery.id, connection=app).complete


def test_a_tracked_task_that_is_rejected_is_resolved(app):
    @app.task(name="refuse", shared=False)
    def refuse():
        raise Reject("no", requeue=False)

    result = refuse.apply_async(track=True)
    with running_worker(app):
        assert result.delivery.wait(30)
    assert (result.delivery.complete, result.delivery.outcomes()) == (False, {"celery": "rejected"})


def test_the_time_for_answers_to_a_delayed_task_begins_when_it_is_due(app):
    result = app.send_task("nobody", countdown=60, track=True, ack_timeout=0.5)
    assert not result.delivery.wait(1.5)
    assert result.delivery.outcomes() == {"celery": "pending"}


def test_a_tracked_task_that_no_worker_takes_is_timed_out(app):
    result = app.send_task("nobody", track=True, ack_timeout=0.5)
    assert result.delivery.wait(20)
    assert result.delivery.outcomes() == {"celery": "timed_out"}


def test_a_signature_can_be_tracked(app):
    result = celery.signature("nobody", app=app).set(track=True, ack_timeout=60).apply_async()
    assert result.delivery.outcomes() == {"celery": "pending"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ack_timeout": 3}, "ack_timeout is 3 without track=True"),
        ({"track": "yes"}, "track is 'yes'; allowed are True and False"),
        ({"track": 1}, "track is 1; allowed are True and False"),
        ({"track": 0}, "track is 0; allowed are True and False"),
        ({"track": None, "ack_timeout": 3}, "track is None; allowed are True and False"),
        ({"track": True, "ack_timeout": 0}, "ack_timeout is 0; allowed is a number of seconds over 0"),
        ({"track": True, "ack_timeout": "soon"}, "ack_timeout is 'soon'; allowed is a number"),
    ],
)
def test_wrong_options_are_named(app, options, error):
    with pytest.raises(InvalidArgument, match=error):
        app.send_task("nobody", **options)
    if "track" in options:
        with pytest.raises(InvalidArgument, match=error):
            celery_redis_plus.publish("x", connection=app, routing_key="celery", **options)


def test_other_tasks_are_not_tracked(app):
    assert not hasattr(app.send_task("nobody"), "delivery")
    assert not hasattr(app.send_task("nobody", track=False), "delivery")


def test_chains_groups_chords_and_callbacks_are_refused_with_tracking(app):
    a, b = celery.signature("a", app=app), celery.signature("b", app=app)
    tracked = b.clone().set(track=True)
    timed = b.clone().set(ack_timeout=3)
    stray = b.clone().set(track="yes")
    refused = [
        lambda: celery.chain(a, b).apply_async(track=True),
        lambda: celery.chain(a, tracked).apply_async(),
        lambda: celery.group(a, b).apply_async(track=True),
        lambda: celery.chord([a, b], b).apply_async(track=True),
        lambda: celery.chord([a, b], tracked).apply_async(),
        lambda: celery.chain(a, celery.group(b, tracked)).apply_async(),
        lambda: a.apply_async(link=tracked),
        lambda: a.apply_async(link_error=[tracked]),
        lambda: celery.group(a, a, tracked).delay(),
        lambda: celery.group(a, a, timed).apply_async(),
        lambda: celery.group(a, stray).apply_async(),
        lambda: celery.group(list(map(json.loads, map(json.dumps, (a, tracked)))), app=app).apply_async(),
        lambda: celery.group(a, celery.chain(a, tracked)).apply_async(),
        lambda: celery.group(a, celery.group(a, tracked)).apply_async(),
        lambda: celery.group(a, a.clone().set(link=tracked)).apply_async(),
        lambda: celery.chord([a, a, tracked], b).apply_async(),
        lambda: celery.chord([a, a]).apply_async(kwargs={"body": tracked}),
        lambda: celery.chord(celery.group(a, tracked), b).delay(),
        lambda: celery.chain(celery.group(a, a), b, tracked).apply_async(),
        lambda: celery.chain(celery.group(a, tracked), b).apply_async(),
        lambda: celery.chain(a, celery.chord([a, tracked], b)).apply_async(),
    ]
    for send in refused:
        with pytest.raises(
            InvalidArgument,
            match=r"(track is (True|'yes')|ack_timeout is 3) for a task that is sent with '([ab]|celery\.(group|chord))', in",
        ):
            send()
    with app.connection_for_read() as connection:
        assert connection.default_channel.queue_sizes("celery").ready == 0
    celery.chain(a, b).apply_async()
    celery.group(a, b.clone().set(track=False))()
    data = {"options": "all", "task": "t", "tasks": [{"options": ["x"]}], "body": tracked}
    celery.chain(celery.group(celery.signature("a", kwargs=data, app=app), a), a).apply_async()
    with app.connection_for_read() as connection:
        assert connection.default_channel.queue_sizes("celery").ready == 5


@pytest.mark.parametrize("canvas", [celery.group, lambda members: celery.chord(members, celery.signature("b"))])
def test_members_that_a_generator_makes_are_sent_while_it_runs(app, canvas):
    """Celery issue 3021: a generator may be long. A member that is to be tracked is refused when it comes."""
    waiting = []

    def members():
        for number in range(6):
            waiting.append(count_ready(app))
            yield celery.signature("a", app=app).set(track=number == 5)

    with pytest.raises(InvalidArgument, match="track is True for a task that is sent with 'a'"):
        canvas(members()).apply_async()
    assert waiting[-1] > 0


def count_ready(app):
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_declare("celery", durable=True).message_count


def test_groups_of_other_apps_are_left_alone():
    other = celery.Celery("other", broker="memory://", set_as_current=False)
    assert celery.group(celery.signature("a", app=other), celery.signature("b", app=other).set(track=True))().children


def test_an_eager_task_is_refused_with_tracking(app):
    @app.task(name="eager", shared=False)
    def eager():
        return 1

    app.conf.task_always_eager = True
    assert eager.delay().get() == 1
    for send in (lambda: eager.apply_async(track=True), lambda: eager.s().set(track=True).apply()):
        with pytest.raises(InvalidArgument, match="track is True for 'eager', which runs eagerly; allowed for sent tasks"):
            send()


def test_the_call_of_a_unique_task_that_waits_already_has_a_handle_too(app):
    @app.task(name="sync", shared=False, unique="until-success")
    def sync(user): ...

    first, second = (sync.apply_async((7,), track=True) for _ in "12")
    assert second.is_duplicate
    assert first.delivery.outcomes() == {"celery": "pending"}
    assert second.delivery.outcomes() == {"celery": "refused"}
