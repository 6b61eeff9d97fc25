"""Which errors of one shard leave the others alone: it is lost to this process until it takes writes again."""

from __future__ import annotations

from typing import Final

from celery_redis_plus.errors import CommandUnavailable, NoPermission, ServerOutOfMemory, ServerUnavailable

#: The server answers, and needs an administrator: nobody knows when it takes this again. Asking it for less does not tell.
REFUSALS: Final = (NoPermission, ServerOutOfMemory, CommandUnavailable)
#: The server answers, and takes nothing, for a while or until somebody mends it.
REFUSES_WRITES: Final = (ServerUnavailable, *REFUSALS)
