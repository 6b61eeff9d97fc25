"""Credentials that are good for a limited time, and a provider that renews them, as managed servers and their identity services.

Each rotation makes a user on the server, and deletes the one before the last: that closes every connection still logged in
as it, as a server does with a token that has expired.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.auth.token import SimpleToken
from redis.credentials import StreamingCredentialProvider

if TYPE_CHECKING:
    import redis

#: Names the file in which a process finds the newest credentials.
FILE_VARIABLE = "CRP_TEST_CREDENTIALS"
#: Seconds between two looks at it.
LOOK_S = 0.02
#: Seconds without a command after which a connection counts as idle.
IDLE_S = 2


class Rotation:
    """The credentials of a server, in a file."""

    def __init__(self, client: redis.Redis, path: Path) -> None:
        self._client = client
        self.path = path
        self.number = 0
        self.rotate()

    @property
    def user(self) -> str:
        return f"user{self.number}"

    def rotate(self) -> None:
        self.number += 1
        password = secrets.token_hex(8)
        self._client.execute_command("ACL", "SETUSER", self.user, "on", f">{password}", "~*", "&*", "+@all")
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([self.user, password]), encoding="utf-8")
        new.replace(self.path)
        self._client.execute_command("ACL", "DELUSER", f"user{self.number - 2}")

    def users(self) -> set[str]:
        """Return as whom this package's connections are logged in.

        Without those for commands that are idle: they log in with their next command, or open anew where the server closed them.
        """
        return {
            one["user"]
            for one in self._client.client_list()
            if one["name"].startswith("celery-redis-plus")
            and not (one["name"].endswith(":commands") and int(one["idle"]) >= IDLE_S)
        }


class FileProvider(StreamingCredentialProvider):
    """Gives what stands in a file, and tells when that changes."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(os.environ[FILE_VARIABLE])
        self._tell: Callable[[Any], None] | None = None
        self._ended = threading.Event()

    def get_credentials(self) -> tuple[str, str]:
        user, password = json.loads(self._path.read_text(encoding="utf-8"))
        return user, password

    def on_next(self, callback: Callable[[Any], None]) -> None:
        self._tell = callback
        threading.Thread(target=self._look, args=(callback,), name="test-credentials", daemon=True).start()

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        pass

    def is_streaming(self) -> bool:
        return self._tell is not None

    def stop(self) -> None:
        self._ended.set()

    def _look(self, tell: Callable[[Any], None]) -> None:
        known = self.get_credentials()
        while not self._ended.wait(LOOK_S):
            found = self.get_credentials()
            if found != known:
                known = found
                tell(SimpleToken(found[1], -1, 0, {"oid": found[0]}))
