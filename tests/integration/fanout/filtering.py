"""Subscribers with `x-server-filter`, and what the server keeps for them."""

from __future__ import annotations

import kombu

from tests.integration.fanout.conftest import NEWS

FILTER = {"x-server-filter": True}
DURABLE = {**FILTER, "x-durable-subscriber": True}
META, FILTERS, CURSORS, STREAM = "fanout:{/0.news}", "fanout:{/0.news}:filters", "cursors:{/0.news}", "/0.news"


def keyed(*keys, name="q", of=NEWS, **arguments):
    """Return a queue with the argument, bound by several keys."""
    return kombu.Queue(name, [kombu.binding(of, key) for key in keys], durable=True, queue_arguments={**FILTER, **arguments})


def fields_left(client):
    """Return what the server has of filters."""
    return client.hgetall(FILTERS), client.keys(META + ":matches:*"), client.hget(META, "filtered")
