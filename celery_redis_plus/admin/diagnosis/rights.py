"""The check of the user's rights: the server itself says which commands of a role it would refuse.

A script asks it with `acl_check_cmd`, which needs no right of an administrator, as ACL DRYRUN does.
Source: https://redis.io/docs/latest/develop/programmability/lua-api/#redis.acl_check_cmd
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoPermissionError

from celery_redis_plus.access_rules import ROLES, Role
from celery_redis_plus.admin.diagnosis.finding import ADVICE, DANGER, OK, Finding
from celery_redis_plus.scripts import script

if TYPE_CHECKING:
    from celery_redis_plus.admin.diagnosis.examined_broker import ExaminedBroker

#: The roles that look at queues; a reader sees its streams only, and cannot run this program's other checks.
CHECKED: Final = tuple(role for role in ROLES if not role.events_only)
REFUSED: Final = 0
#: Rights without which a process works, and does less: it does not check its server, nor find lost processes, nor has a name.
OPTIONAL: Final = frozenset({"info", "client|id", "client|list", "client|setinfo", "client|setname"})
#: Missing rights that are named.
NAMED: Final = 12

#: By number: the commands that need so many arguments (COMMAND INFO). A key does for each of them, since nothing is run.
_ARGUMENTS: Final = {
    0: "client|id client|info client|list info ping role time",
    1: "client|setname del exists get hgetall hkeys hlen hvals incr llen persist pttl scan scard script|load select "
    "smembers type unlink xinfo|stream xlen zcard zrandmember",
    2: "append client|setinfo copy hdel hexists hget hmget hscan hstrlen lindex lpos lpush pexpire rename sadd set setnx srem "
    "wait xdel zrank zrem zscan zscore",
    3: "hincrby hset hsetnx lrange lrem xrange xrevrange xtrim zadd zcount zincrby zlexcount zrange zrangebyscore "
    "zremrangebyrank zremrangebyscore zrevrange",
    4: "xadd",
}
#: The words of all commands, with '' where a key stands; of some the server reads from the arguments where their keys are.
WORDS: Final = {
    **{name: [*name.split("|"), *[""] * count] for count, names in _ARGUMENTS.items() for name in names.split()},
    "bzmpop": ["bzmpop", "0", "1", "", "MIN"],
    "evalsha": ["evalsha", "0" * 40, "1", ""],
    "xread": ["xread", "STREAMS", "", "0"],
}


def rights(broker: ExaminedBroker) -> Iterator[Finding]:
    """Which roles of the access rules the user can play, and which rights it lacks."""
    who = broker.commands.connector.address.username or "default"
    words = json.dumps(list(WORDS.values()))
    try:
        replies = broker.commands.call(script("check_rights"), [broker.keys.queues], words)
    except NoPermissionError as error:
        yield Finding(
            "rights", DANGER, f"user {who!r} may not even look: {error.__cause__ or error}", "Give it a rule of docs/access.md."
        )
        return
    refused = {command for command, reply in zip(WORDS, replies, strict=True) if int(reply) == REFUSED}
    missing = {role.name: sorted(refused.intersection(role.commands())) for role in CHECKED}
    values: dict[str, Any] = {"user": who, "missing": missing}
    asked = [role for role in CHECKED if role.name in broker.roles]
    for role in asked:
        lacks = missing[role.name]
        text = f"lacks {_named(lacks, role)}" if lacks else f"has the rights of a {role.name}"
        yield Finding("rights", _level(lacks), f"user {who!r} {text}", _remedy(role) if lacks else "", values)
    if not asked:
        yield _of_any_role(who, missing, values)


def _of_any_role(who: str, missing: dict[str, list[str]], values: dict[str, Any]) -> Finding:
    able = [name for name, lacks in missing.items() if not lacks]
    text = f"user {who!r} has the rights of {', '.join(able) or 'no role'}"
    if len(able) == len(missing):
        return Finding("rights", OK, text, "", values)
    # What the user was probably meant for: the role to which it comes closest.
    role = min((role for role in CHECKED if missing[role.name]), key=lambda role: len(missing[role.name]))
    text = f"{text}, and lacks {_named(missing[role.name], role)}"
    return Finding("rights", ADVICE if able else _level(missing[role.name]), text, _remedy(role), values)


def _level(lacks: list[str]) -> str:
    return DANGER if set(lacks) - OPTIONAL else ADVICE if lacks else OK


def _named(lacks: list[str], role: Role) -> str:
    named = " ".join(f"+{command}" for command in lacks[:NAMED])
    more = f" and {len(lacks) - NAMED} more" if lacks[NAMED:] else ""
    return f"{len(lacks)} right(s) of a {role.name}: {named}{more}"


def _remedy(role: Role) -> str:
    return f"Where it shall be a {role.name}, give it the rule of docs/access.md."
