"""A reply that the server has yet to send, to what was sent without waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redis_plus.scripts import Script

#: Called with (reply, None) or (None, error).
Done = Callable[[Any, Exception | None], None]


def unread(reply: Any, error: Exception | None) -> None:
    """Drop a reply that its sender has no use for."""


@dataclass(slots=True, eq=False)
class PendingReply:
    """One reply, in the order of what was sent."""

    #: None for a plain command.
    script: Script | None
    #: The call, to name its keys in an error and to send it again; empty where it holds a secret.
    packed: bytes
    done: Done
    #: It answers an AUTH: the one command whose refusal does not end the connection.
    is_login: bool = False
