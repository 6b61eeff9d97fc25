"""`celery-redis-plus pause`: let a queue's messages wait."""

from __future__ import annotations

from dataclasses import asdict

import click

from celery_redis_plus.cli.asking import DURATION, json_option
from celery_redis_plus.cli.output import tell
from celery_redis_plus.cli.queue_patterns import chosen_queues, queues_argument
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Let the messages of queues wait.")
@with_target
@queues_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why; others will want to know.")
@click.option(
    "--for", "for_s", type=DURATION, metavar="TIME", help="End the pause by itself after this time, such as 90s, 15m, 2h."
)
@json_option
def command(target: Target, *, queues: tuple[str, ...], reason: str, for_s: float | None, as_json: bool) -> None:
    """Pause queues: their consumers get nothing more; publishing and running tasks go on. QUEUE is a name or a
    pattern such as 'shop.*'.

    A pause survives restarts of workers and server. It ends with 'resume', or by itself after --for. Workers log it.
    """
    with target.admin() as admin:
        for queue in chosen_queues(admin, queues):
            admin.pause(queue, reason, for_s)
            pause = admin.paused(queue)
            end = "it is resumed" if pause is None or pause.until is None else pause.until.isoformat(timespec="seconds")
            described = {"queue": queue} if pause is None else asdict(pause)
            tell(described, f"queue {queue!r} is paused until {end}", as_json=as_json)
