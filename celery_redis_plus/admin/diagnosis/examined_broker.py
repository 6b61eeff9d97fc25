"""The broker that is looked at: its connection, and what several checks want to know of it, asked once."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_redis_plus.broker.queue_failures import KeyFailures
from celery_redis_plus.broker.queues.overview import QueueOverview, list_queues, read_overviews
from celery_redis_plus.connection.server_check import parse_info
from celery_redis_plus.keys import decode_name
from celery_redis_plus.migration.kombu_broker import KombuBroker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys
    from celery_redis_plus.options import Options

logger = logging.getLogger(__name__)

#: The settings that the checks read.
SETTINGS = ("save", "appendfsync", "min-replicas-to-write", "timeout")


class ExaminedBroker:
    """One broker, as it is now. What is read is kept, so that all checks see the same."""

    def __init__(
        self, commands: CommandConnection, keys: Keys, options: Options, roles: Sequence[str] = (), *,
        kombu_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Look over `commands`.

        `roles` are the roles that the user must be able to play; without any, it may be any of them. `kombu_options` are the
        app's `broker_transport_options`, of which kombu's `sep` and `priority_steps` are read.
        """
        self.commands = commands
        self.keys = keys
        self.options = options
        self.roles = tuple(roles)
        self._kombu_options = kombu_options or {}

    @cached_property
    def info(self) -> dict[str, str]:
        """The fields of INFO. Raises NoPermissionError where the user may not ask."""
        return parse_info(self.commands.command("INFO"))

    def number(self, field: str) -> int:
        """Return a number of INFO; 0 where it has none of that name."""
        text = self.info.get(field, "")
        return int(text) if text.lstrip("-").isdigit() else 0

    @cached_property
    def settings(self) -> dict[str, str]:
        """Those of `SETTINGS` that the server tells; none where CONFIG is refused or renamed, as by most providers."""
        found = {}
        for name in SETTINGS:
            try:
                reply = self.commands.command("CONFIG", "GET", name)
            except ResponseError:
                continue
            # A dict in RESP3, a list in RESP2.
            pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
            found.update({key.decode(): value.decode() for key, value in pairs})
        return found

    @cached_property
    def kombu(self) -> KombuBroker:
        """What kombu's own Redis transport keeps in this database."""
        return KombuBroker.of_options(self.commands, self.keys.prefix, self._kombu_options)

    @cached_property
    def overviews(self) -> list[QueueOverview]:
        """How all queues stand, without those that cannot be read, which is logged."""
        failures = KeyFailures(logger, "cannot be read")
        return list(read_overviews(self.commands, self.keys, list_queues(self.commands, self.keys), failures))

    @cached_property
    def lasting(self) -> frozenset[str]:
        """The names of the queues that do not vanish by themselves."""
        names = self.commands.command("ZRANGE", self.keys.queues, "+inf", "+inf", "BYSCORE")
        return frozenset(map(decode_name, names))
