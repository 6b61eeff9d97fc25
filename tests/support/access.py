"""Servers on which each role has the user and the rights that the documentation names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_redis_plus.access_rules import ROLES
from tests.support.servers import new_server

if TYPE_CHECKING:
    import redis

    from celery_redis_plus.testing.server import EmbeddedServer

PASSWORD = "role-secret"
BY_NAME = {role.name: role for role in ROLES}

#: Rights that Redis 7.0 does not know.
UNKNOWN_BEFORE_7_2 = ("+client|setinfo",)


class RoleServer:
    """A server as one role has it: its URL logs in as that role; its clients are an administrator's."""

    def __init__(self, server: EmbeddedServer, role: str) -> None:
        self.server = server
        self.role = role

    def url(self, db: int = 0, scheme: str = "redisplus", role: str = "") -> str:
        """Return the address of the database `db`, as `role` or this one."""
        return self.server.url(db, scheme).replace("://", f"://{role or self.role}:{PASSWORD}@", 1)

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """Return an administrator's client; the caller closes it."""
        return self.server.client(db, **options)

    def grant(self, prefix: str = "", *less: str) -> None:
        """Make the user of each role, `less` some rights: `-hset`."""
        with self.client() as admin:
            grant(admin, prefix, *less)
            admin.script_flush()

    def refusals(self) -> list[str]:
        """Return what was refused since `grant`, as `user: object`."""
        with self.client() as admin:
            return refusals(admin)


def grant(admin: redis.Redis, prefix: str = "", *changes: str) -> None:
    """Make the user of each role on a server, with `changes` to its rights: `-hset`. Nothing was refused yet."""
    version = admin.info("server")["redis_version"]
    unknown = UNKNOWN_BEFORE_7_2 if tuple(map(int, version.split(".")[:2])) < (7, 2) else ()
    for role in ROLES:
        rule = [right for right in role.rule(prefix).split() if right not in unknown]
        admin.execute_command("ACL", "SETUSER", role.name, "reset", "on", f">{PASSWORD}", *rule, *changes)
    admin.execute_command("ACL", "LOG", "RESET")


def refusals(admin: redis.Redis) -> list[str]:
    """Return what a server has refused since `grant`, as `user: reason object`."""
    entries: Any = admin.acl_log()
    return [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in entries]


@contextmanager
def role_server(role: str) -> Iterator[RoleServer]:
    """Start a server, and see at the end that it has refused nothing."""
    with new_server() as server:
        secured = RoleServer(server, role)
        secured.grant()
        yield secured
        refused = secured.refusals()
        assert not refused, refused
