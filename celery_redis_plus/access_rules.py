"""The rights of each role on the server: `docs/access.md` prints them as rules for ACL SETUSER.

The commands of a role are those of its scripts, read from their sources, and those that Python sends for it. EVALSHA needs the
right to read and to write each key that a call names (`acl.c` of Valkey and Redis), so what tells roles apart is the commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from celery_redis_plus.keys import Keys
from celery_redis_plus.scripts import script, script_names

_CALLED = re.compile(r"redis\.p?call\('([A-Z]+)'")
#: Commands of which a role needs only some sub-commands, where scripts call them.
_SUBCOMMANDS = {"xinfo": ("xinfo|stream",)}
#: What a connection does before anything else; AUTH and HELLO need no right.
_CONNECTION = ("client|setname", "client|setinfo", "client|id", "select", "ping", "info", "role")
#: How scripts are called. TYPE names the key that an error is about.
_SCRIPTS = ("evalsha", "script|load", "type")

#: Scripts that look, and may repair besides.
_CHECKING = ("check_groups", "check_limiters", "check_messages", "check_queue")


def _reading() -> tuple[str, ...]:
    """Return the scripts that only look, for the command line and the functions that read."""
    return tuple(name for name in script_names() if script(name).source.startswith("#!lua flags=no-writes"))


#: Scripts that publishers call: they publish, declare, bind, and wait for room.
_PUBLISHING = (
    *("add_to_queue_set", "bind", "count_consumers", "database_id", "declare", "declare_exchange", "increment_counters"),
    *("leave_wait_queue", "list_queue", "list_subscribers", "next_queue_id", "notify", "publish", "publish_batch"),
    *("publish_bounded", "publish_dead", "publish_fanout", "publish_fanout_bounded", "publish_ordinary", "replace_arguments"),
    *("set_event_log", "track", "track_report"),
)


@dataclass(frozen=True, slots=True)
class Role:
    """What a user of the server may do."""

    name: str
    #: One sentence for the documentation.
    doc: str
    scripts: tuple[str, ...]
    #: Commands that Python sends, in lower case, with `|` before a sub-command.
    plain: tuple[str, ...]
    #: Whether only the keys of event logs are needed.
    events_only: bool = False
    #: Commands that its scripts have for what the role does not do.
    without: tuple[str, ...] = ()

    def commands(self) -> list[str]:
        """Return all commands of the role."""
        called = {name.lower() for one in self.scripts for name in _CALLED.findall(script(one).source)}
        called.update(self.plain, _CONNECTION)
        if self.scripts and not self.events_only:
            called.update(_SCRIPTS)
        for command, subcommands in _SUBCOMMANDS.items():
            if command in called:
                called.remove(command)
                called.update(subcommands)
        return sorted(called.difference(self.without))

    def rule(self, prefix: str = "") -> str:
        """Return the arguments of ACL SETUSER behind the user's name and password; `prefix` is the option `global_keyprefix`."""
        keys = [f"~{_escaped(prefix)}*"]
        if self.events_only:
            keys = _event_keys(prefix)
        return " ".join(("resetkeys", "resetchannels", "-@all", *keys, *(f"+{command}" for command in self.commands())))


def _event_keys(prefix: str) -> list[str]:
    keys = Keys(_escaped(prefix))
    any_queue = keys.queue("*")
    readable = [keys.event_logs, keys.database_id, any_queue.events_meta]
    return [f"%R~{key.decode()}" for key in readable] + [
        f"~{key.decode()}" for key in (any_queue.events, any_queue.events_readers)
    ]


def _escaped(prefix: str) -> str:
    """Return a prefix as a pattern that only it matches."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", prefix)


ROLES = (
    Role(
        "worker",
        "Consumes and publishes: Celery's workers, `celery` commands that change messages, `check --repair`.",
        tuple(script_names()),
        (
            *("client|info", "client|list", "bzmpop", "wait", "del", "exists", "get", "hdel", "hexists", "hget", "hgetall"),
            *("hkeys", "hmget", "hscan", "hset", "pexpire", "scan", "smembers", "srem", "time", "unlink", "xrange", "xread"),
            *("xrevrange", "zadd", "zcard", "zrange", "zrank", "zrem", "zscan", "zscore"),
            # Of kombu's own lists: they tell of a process that publishes without this package; `take_from_kombu` reads them.
            *("llen", "lrange", "scard"),
        ),
    ),
    Role(
        "publisher",
        "Publishes, declares and binds: web applications, `celery beat`.",
        _PUBLISHING,
        (
            *("bzmpop", "client|info", "hget", "hgetall", "hexists", "hkeys", "hmget", "hscan", "hset", "pexpire", "wait"),
            *("time", "zcard", "zscore"),
        ),
    ),
    Role(
        "monitor",
        "Looks: `celery-redis-plus doctor`, `check`, `queues`, `queue`, `why`, `audit`, `consumers`, `counters`, `scheduled`, "
        "`messages list` and `show`, `dead-letters list` and `show`, `exporter`, `web --read-only`, and the functions that read.",
        (*_CHECKING, *_reading()),
        (
            *("exists", "get", "hexists", "hget", "hgetall", "hkeys", "hmget", "hscan", "scan", "smembers", "time", "xrange"),
            # The last one is of kombu's own lists, for `doctor`.
            *("xrevrange", "zcard", "zrange", "zrank", "zscan", "zscore", "llen"),
        ),
        # `check --repair` has the same scripts as `check`, and an include writes in other scripts.
        without=(
            "hdel",
            "hincrby",
            "hset",
            "hsetnx",
            "persist",
            "pexpire",
            "unlink",
            "xtrim",
            "zadd",
            "zincrby",
            "zrem",
            "set",
            "zremrangebyrank",
            "zremrangebyscore",
        ),
    ),
    Role(
        "reader",
        "Reads the event log and keeps its position there: `celery-redis-plus events`, the Spark pipeline.",
        ("commit_events",),
        ("eval", "get", "hdel", "hgetall", "hmget", "memory|usage", "smembers", "time", "xinfo|stream", "xrange"),
        events_only=True,
    ),
)
