"""Who acts on a broker, where nobody says it."""

from __future__ import annotations

import getpass
import os
import socket
from functools import cache

#: Says who acts, where several people have one account.
ACTOR_VARIABLE = "CELERY_REDIS_PLUS_ACTOR"


@cache
def default_actor() -> str:
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
