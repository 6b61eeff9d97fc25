"""All checks by their names, in the order in which they are made; docs/doctor.md is made of this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus.admin.diagnosis import queue_checks, response_checks, rights, server_checks, work_checks
from celery_redis_plus.admin.diagnosis.finding import UNKNOWN, Finding
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker

#: A check: yields its findings, at least one.
Check = Callable[["ExaminedBroker"], Iterator[Finding]]

CHECKS: Final[dict[str, Check]] = {
    "server": server_checks.server,
    "persistence": server_checks.persistence,
    "eviction": server_checks.eviction,
    "memory": server_checks.memory,
    "clients": server_checks.clients,
    "idle-timeout": server_checks.idle_timeout,
    "replication": server_checks.replication,
    "scripts": server_checks.scripts,
    "latency": response_checks.latency,
    "clock": response_checks.clock,
    "rights": rights.rights,
    "unconverted": queue_checks.unconverted,
    "consumers": queue_checks.consumers,
    "silent": queue_checks.silent,
    "maintenance": queue_checks.maintenance,
    "limits": work_checks.limits,
    "stuck": work_checks.stuck,
    "backlog": queue_checks.backlog,
    "pauses": queue_checks.pauses,
    "dead-letters": queue_checks.dead_letters,
}


def examine(broker: ExaminedBroker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Make the checks of these names, all without any; yield what they find.

    What the user may not ask, or the server does not answer, is a finding of the level `unknown`.

    Raises:
        InvalidArgument: there is no check of a name.
        redis.exceptions.RedisError: the server cannot be reached, does not fit, or does not let this user in.
    """
    for name in names:
        if name not in CHECKS:
            raise InvalidArgument(f"there is no check {name!r}; allowed: {', '.join(CHECKS)}")
    broker.commands.connect()
    for name, check in CHECKS.items():
        if names and name not in names:
            continue
        try:
            yield from check(broker)
        except NoPermissionError as error:
            yield Finding(
                name,
                UNKNOWN,
                f"the user may not look: {error.__cause__ or error}",
                "Ask with a user that may, see docs/access.md.",
            )
        except ResponseError as error:
            yield Finding(name, UNKNOWN, f"the server does not tell: {error}")
