"""`celery-redis-plus queue`: one queue as it is: its arguments, limits, bindings and consumers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from celery_redis_plus.admin.formatting import span, utc
from celery_redis_plus.cli.asking import json_option
from celery_redis_plus.cli.output import print_fields, print_json
from celery_redis_plus.cli.target import Target, with_target


@click.command(short_help="Show how one queue is declared, and how full it is.")
@with_target
@click.argument("queue")
@json_option
def command(target: Target, *, queue: str, as_json: bool) -> None:
    """Show one queue: its arguments, limits and their use, bindings, consumers, messages by state, and a pause."""
    with target.admin() as admin:
        one, pause = admin.overview_of(queue), admin.paused(queue)
        bindings, consumers = admin.bindings(queue), admin.consumers(queue)
    if as_json:
        bound = [{"exchange": name, "routing_key": b.routing_key, "arguments": b.arguments} for name, b in bindings]
        described = {**asdict(one), "full": one.full, "paused_by": pause.by or None if pause and one.paused else None}
        print_json({**described, "bindings": bound, "consumers": [asdict(consumer) for consumer in consumers]})
        return
    counts = ("ready", "delayed", "unacked", "dead", "published", "delivered", "rejected")
    fields: list[tuple[str, Any]] = [("queue", one.queue), *((name, f"{getattr(one, name):,}") for name in counts)]
    fields.append(("oldest", span(one.oldest_s)))
    if one.paused is not None:
        by = f" by {pause.by}" if pause and pause.by else ""
        end = f"until {utc(round(one.paused_until.timestamp() * 1000))}" if one.paused_until else "until it is resumed"
        fields.append(("paused", f"{one.paused} ({end}{by})"))
    fields += [(name, str(value)) for name, value in one.arguments.items()]
    fields += [(f"{use.name} used", f"{use.used:,} of {use.most:,} ({use.part:.0%})") for use in one.limits]
    for name, binding in bindings:
        arguments = f" with {dict(binding.arguments)}" if binding.arguments else ""
        fields.append(("binding", f"exchange {name!r}, routing key {binding.routing_key!r}{arguments}"))
    for consumer in consumers:
        active = ", the active one" if consumer.active else ""
        fields.append(("consumer", f"{consumer.host}:{consumer.pid} {consumer.state}, holds {consumer.held:,}{active}"))
    print_fields(fields)
