"""Options of `apply_async` that nobody understands."""

from datetime import UTC, datetime

import kombu
import pytest

from celery_redis_plus.errors import InvalidArgument, InvalidEta, InvalidExpiration

LAST = datetime.max  # noqa: DTZ901 - as users write it


def test_a_task_of_an_app_that_is_not_configured_cannot_be_tracked_silently(celery_app):
    app = celery_app("alone")
    with pytest.raises(InvalidArgument, match="publish option 'track' is True"):
        app.send_task("c.add", (1, 2), track=True)


def test_what_celery_itself_passes_says_nothing(celery_app, caplog):
    app = celery_app("configured")

    @app.task(name="c.options", ignore_result=True, shared=False)
    def task(*_, **__):
        """Do nothing."""

    task.apply_async(
        (1,), {"k": 1}, countdown=1, expires=60, priority=4, queue="celery", ignore_result=True, time_limit=9, soft_time_limit=8,
        shadow="s", link=task.s(), link_error=task.s(), group_id="g", group_index=1, retries=1, chord=None, reply_to="r",
        compression="zlib", serializer="json", add_to_parent=False, headers={"h": 1}, delivery_mode=2, retry=True,
        retry_policy={"max_retries": 1}, stamped_headers=["tenant"], tenant="t", argsrepr="a", kwargsrepr="k", mandatory=False,
    )  # fmt: skip
    (task.s(1) | task.s(2)).apply_async()

    assert caplog.messages == []


@pytest.mark.parametrize("expires", [LAST, LAST.replace(tzinfo=UTC), datetime(2287, 1, 1, tzinfo=UTC), 10**10])
def test_an_expiry_that_is_beyond_all_scores_is_none(expires, celery_app, redis_client):
    celery_app("configured").send_task("c.add", (1, 2), expires=expires)

    assert redis_client.zcard("queue:{celery}") == 1
    assert redis_client.zcard("expiry:{celery}") == 0


def test_an_expiry_in_this_century_holds(celery_app, redis_client):
    celery_app("configured").send_task("c.add", (1, 2), expires=datetime(2120, 1, 1, tzinfo=UTC))
    celery_app("configured").send_task("c.add", (1, 2), expires=datetime(2150, 1, 1, tzinfo=UTC))

    assert redis_client.zcard("expiry:{celery}") == 2


@pytest.mark.parametrize(("option", "error"), [("eta", InvalidEta), ("expires", InvalidExpiration)])
def test_the_option_is_named_that_is_no_time(option, error, celery_app):
    app = celery_app("configured")
    with app.connection_for_write() as connection, pytest.raises(error, match=f"^{option} 'soon' is no "):
        kombu.Producer(connection).publish("x", routing_key="celery", headers={"task": "c.add", "id": "1", option: "soon"})


def test_an_eta_that_no_score_keeps_is_refused_by_its_name(celery_app):
    with pytest.raises(InvalidEta, match=r"^eta '9999-.* is out of range; .* to November 2286"):
        celery_app("configured").send_task("c.add", (1, 2), eta=LAST)
