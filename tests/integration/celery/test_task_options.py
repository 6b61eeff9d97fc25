"""Options of `apply_async` that nobody understands."""

import pytest

from celery_redis_plus.errors import InvalidArgument


def test_a_task_cannot_be_tracked_silently(celery_app):
    app = celery_app("configured")
    with pytest.raises(InvalidArgument, match="publish option 'track' is True"):
        app.send_task("c.add", (1, 2), track=True)


def test_what_celery_itself_passes_says_nothing(celery_app, caplog):
    app = celery_app("configured")

    @app.task(name="c.options", ignore_result=True)
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
