"""Tasks that collect their messages, as those of celery-batches do, beside ack policies."""

from __future__ import annotations

import pytest
from celery import Celery, Task

from celery_redis_plus.integration.ack_policies import AckPolicies
from celery_redis_plus.integration.requests import install_request_class


class Collecting(Task):
    """As `celery_batches.Batches`."""

    abstract = True
    flush_every = 10

    def flush(self, requests):
        """Run them."""


def run(requests):
    """Do nothing."""


@pytest.mark.parametrize("queue", ["elsewhere", "celery"])
def test_a_policy_leaves_when_a_batch_is_acked(queue):
    app = Celery("batches", set_as_current=False)
    batched = app.task(base=Collecting, name="batched", shared=False)(run)
    single = app.task(name="single", shared=False)(run)
    install_request_class(app, AckPolicies(None, {queue: "nack_on_error"}))
    assert single.acks_late
    assert not batched.acks_late


def test_a_policy_of_a_batch_itself_is_warned_of(caplog):
    app = Celery("batches", set_as_current=False)
    app.task(base=Collecting, name="batched", ack_policy="manual", shared=False)(run)
    install_request_class(app, AckPolicies(None, {}))
    assert caplog.messages == ["task 'batched': celery-batches knows no ack_policy; its acks_late decides"]
