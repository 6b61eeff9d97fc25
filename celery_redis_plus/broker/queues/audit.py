"""Who did what to a broker: an entry on the server and a line in the log for each action of command line, web page and Python."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from celery_redis_plus.stored_message import stored_number

if TYPE_CHECKING:
    from celery_redis_plus.connection.command_connection import CommandConnection
    from celery_redis_plus.keys import Keys

logger = logging.getLogger(__name__)

#: Entries that the server keeps: some 2 MB. `~` in XADD: it may be a hundred more.
KEPT: Final = 10_000
#: Entries that one command reads.
PAGE: Final = 500
#: Characters of a text that an entry keeps.
LONGEST: Final = 500
#: Says who acts, where several people have one account.
ACTOR_VARIABLE: Final = "CELERY_REDIS_PLUS_ACTOR"
DONE, BEGUN, FAILED = "done", "begun", "failed"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a name, by what (`cli`, `web`, `api`), and from where (a host and a process, or an address)."""

    name: str
    via: str
    origin: str

    def __str__(self) -> str:
        return f"{self.name} ({self.via}, {self.origin})"


@dataclass(slots=True)
class Action:
    """An action that goes on. Whoever acts sets `count`, and `queue` where that is known only then."""

    #: How many messages, queues or readers it has changed.
    count: int = 0
    queue: str | None = None
    #: What more is known at its end.
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action as it is kept.

    Attributes:
        id: of the entry; its first half is the server's time in ms.
        at_ms: when it ended, or began, in ms since the epoch.
        actor, via, origin: see `Actor`.
        action: `pause`, `resume`, `purge`, `cancel`, …
        queue: where; None for an action on several, or on none.
        count: how many messages, queues or readers it changed.
        outcome: `done`; `begun` of a long one whose end is not known (yet); `failed` of one that was cut short.
        details: what it was about: a reason, a task, a target.
    """

    id: str
    at_ms: int
    actor: str
    via: str
    origin: str
    action: str
    queue: str | None
    count: int
    outcome: str
    details: dict[str, Any]


_acting: ContextVar[Actor | None] = ContextVar("celery_redis_plus_actor", default=None)
#: The action that goes on: what it is made of is part of it.
_open: ContextVar[Action | None] = ContextVar("celery_redis_plus_action", default=None)


def user_and_host() -> str:
    """Return `$CELERY_REDIS_PLUS_ACTOR`, else the user's name and the host's: `ada@worker-1`."""
    named = os.environ.get(ACTOR_VARIABLE, "").strip()
    if named:
        return named
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def current_actor() -> Actor:
    """Return who acts now: as `acting` says, else the user of this process, by Python."""
    return _acting.get() or process_actor("api")


def process_actor(via: str) -> Actor:
    """Return the user of this process, as somebody who acts by `via`."""
    return Actor(user_and_host(), via, f"{socket.gethostname()}:{os.getpid()}")


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Let what is done meanwhile, in this thread or task, be done by `actor`."""
    token = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(token)


class Audit:
    """The audit log over one connection: the last `KEPT` actions, in a stream of the database.

    An entry that cannot be written ends no action: a warning says so.
    """

    def __init__(self, commands: CommandConnection, keys: Keys) -> None:
        self._commands = commands
        self._key = keys.audit

    @contextmanager
    def action(self, name: str, queue: str | None = None, *, in_steps: bool = False, **details: Any) -> Iterator[Action]:
        """Note what is done meanwhile, where it changes something, or is cut short.

        Args:
            name: `pause`, `purge`, …
            queue: where; None: in several queues, or in none.
            in_steps: it takes several calls: its beginning is noted too, so that one whose process is killed is known.
            details: what it is about; those that are None are left out.
        """
        if _open.get() is not None:
            # A part of another action, which tells of all.
            yield Action()
            return
        action = Action(queue=queue, details={key: value for key, value in details.items() if value is not None})
        begun = self._write(name, action, BEGUN) if in_steps else None
        token = _open.set(action)
        try:
            yield action
        except BaseException as error:
            # Where the reply was lost, it may have been done.
            if in_steps or action.count or self._commands.outcome_unknown:
                action.details["error"] = type(error).__name__ if not str(error) else str(error)
                self._end(name, action, FAILED, begun)
            raise
        else:
            if in_steps or action.count:
                self._end(name, action, DONE, begun)
        finally:
            _open.reset(token)

    def _end(self, name: str, action: Action, outcome: str, begun: str | None) -> None:
        self._write(name, action, outcome, begun)
        queue = action.queue
        about = "".join(f", {key} {_short(value)}" for key, value in action.details.items())
        where = "" if queue is None else f" in queue {queue!r}"
        ended = ": " if outcome == DONE else " was cut short: "
        logger.info(
            "audit: %s%s%s%d changed%s, by %s", name, where, ended, action.count, about, current_actor(),
            extra={} if queue is None else {"queue": queue},
        )  # fmt: skip

    def _write(self, name: str, action: Action, outcome: str, begun: str | None = None) -> str | None:
        actor = current_actor()
        fields = {
            "actor": _short(actor.name), "via": actor.via, "from": _short(actor.origin), "action": name,
            "queue": _short(action.queue or ""), "count": str(action.count), "outcome": outcome, "begun": begun or "",
            "details": json.dumps({key: _short(value) for key, value in action.details.items()}),
        }  # fmt: skip
        flat = [part.encode("utf-8", "backslashreplace") for pair in fields.items() for part in pair]
        try:
            written: bytes = self._commands.command("XADD", self._key, "MAXLEN", "~", KEPT, "*", *flat)
        except (RedisError, OSError) as error:
            logger.warning("the audit log has no entry of an action (%s by %s): %s", name, actor, error)
            return None
        return written.decode()

    def entries(self) -> Iterator[AuditEntry]:
        """Yield the actions, the last one first; a page is read when it is needed. Raises as `CommandConnection.call` does.

        The beginning of an action is left out where its end is known.
        """
        last = b"+"
        ended: set[str] = set()
        while True:
            page = self._commands.command("XREVRANGE", self._key, last, "-", "COUNT", PAGE)
            for id_, flat in page:
                entry, begun = _entry(id_.decode(), flat)
                ended.add(begun)
                if entry is not None and (entry.outcome != BEGUN or entry.id not in ended):
                    yield entry
            if len(page) < PAGE:
                return
            last = b"(" + page[-1][0]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _entry(id_: str, flat: list[bytes]) -> tuple[AuditEntry | None, str]:
    """Return an entry, None for one that somebody else wrote; and the id of the entry of its beginning, '' without one."""
    texts = [part.decode("utf-8", "replace") for part in flat]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    try:
        details = json.loads(fields["details"])
        entry = AuditEntry(
            id_, stored_number(id_.partition("-")[0]), fields["actor"], fields["via"], fields["from"], fields["action"],
            fields["queue"] or None, stored_number(fields["count"]), fields["outcome"], dict(details),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError):
        return None, ""
    return entry, fields.get("begun", "")
