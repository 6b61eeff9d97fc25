"""`celery-redis-plus why`: why a message waits, why it was delivered again, and when its turn comes."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from celery_redis_plus.admin.formatting import utc, visible
from celery_redis_plus.cli.asking import Seconds, json_option
from celery_redis_plus.cli.exit_status import DONE
from celery_redis_plus.cli.message_selection import queue_option, searching, tell_unknown
from celery_redis_plus.cli.output import print_json, time_of
from celery_redis_plus.cli.target import Target, with_target

if TYPE_CHECKING:
    from celery_redis_plus.admin.broker_admin import BrokerAdmin
    from celery_redis_plus.admin.explanation.explain import Explanation, Rate
    from celery_redis_plus.broker.queues.messages import MessageInfo

#: An hour between two looks at the counter.
MAX_SAMPLE_S = 3_600


@click.command(short_help="Tell why a message waits, or ran twice.")
@with_target
@click.argument("message", metavar="ID")
@queue_option
@click.option(
    "--sample",
    "sample_s",
    type=Seconds(0, MAX_SAMPLE_S),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Count the queue's deliveries for so long, to estimate when a ready message has its turn; 0: no estimate.",
)
@json_option
def command(target: Target, *, message: str, queue: str | None, sample_s: float, as_json: bool) -> int:
    """Tell why a message waits, who has it, or why it died. Then its deliveries with their ends, from the queue's event log, and
    when its turn comes at the present rate.

    ID is a message's id, or Celery's task id.
    """
    with target.admin() as admin:
        with searching(admin, queue):
            found = admin.messages.find(message, queue)
        if found is None:
            return tell_unknown(admin, [message], queue)
        explanation = admin.explain(found.queue, found.id, _rate(admin, found, sample_s))
        if explanation is None:
            return tell_unknown(admin, [message], queue)
    if as_json:
        print_json(_described(explanation))
    else:
        _print(explanation)
    return DONE


def _rate(admin: BrokerAdmin, found: MessageInfo, seconds: float) -> Rate | None:
    """Count the deliveries of a queue for some seconds; None for a message that does not wait for a consumer."""
    from celery_redis_plus.admin.explanation.explain import Rate

    if not seconds or found.state != "PENDING":
        return None
    before, began = admin.counters(found.queue).delivered, time.monotonic()
    time.sleep(seconds)
    delivered = admin.counters(found.queue).delivered - before
    took_s = time.monotonic() - began
    return Rate(max(0, delivered) / took_s, took_s)


def _described(explanation: Explanation) -> dict[str, Any]:
    found = explanation.message
    return {
        "id": found.id,
        "queue": found.queue,
        "state": found.state,
        "task": found.task,
        "task_id": found.task_id,
        "causes": [asdict(cause) for cause in explanation.causes],
        "deliveries": explanation.deliveries or None,
        "attempts": [
            {
                "number": one.number,
                "worker": one.worker,
                "began": time_of(one.began_ms),
                "ended": time_of(one.ended_ms),
                "event": one.event,
                "reason": one.reason,
                "error": one.error,
                "text": one.text,
            }
            for one in explanation.attempts
        ],
        "turn_s": explanation.turn_s,
        "turn": explanation.turn or None,
    }


def _print(explanation: Explanation) -> None:
    found = explanation.message
    task = f" of task {found.task}" if found.task else ""
    click.echo(visible(f"message {found.id}{task} in queue {found.queue!r}: {found.state}"))
    for cause in explanation.causes:
        click.echo(visible(f"* {cause.text}"))
    if explanation.deliveries:
        click.echo(visible(explanation.deliveries))
    for one in explanation.attempts:
        number = "a delivery" if one.number is None else f"delivery {one.number}"
        worker = f" to {one.worker}" if one.worker else ""
        click.echo(visible(f"* {number} at {utc(one.began_ms)}{worker}: {one.text}"))
    if explanation.turn:
        click.echo(f"its turn: {explanation.turn}")
