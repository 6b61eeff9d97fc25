"""The users of the page: their names, roles and passwords, from a file of `web-user`, or from a proxy that knows them.

A line of the file is `NAME:ROLE:scrypt:SALT:HASH`, salt and hash in hexadecimal. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery_redis_plus.connection.forks import lock_of
from celery_redis_plus.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ROLES: Final = (VIEWER, OPERATOR)
#: Of scrypt: 16 MB and some 0.2 s a password.
#: Source: https://cheatsheetseries.owasp.org/cheatsheets/Password_Storage_Cheat_Sheet.html#scrypt
COST, BLOCK, PARALLEL = 2**14, 8, 5
MAX_MEMORY: Final = 64 * 1024 * 1024
SALT_BYTES: Final = 16
#: Longer ones only cost time.
MAX_PASSWORD: Final = 1_000
MIN_PASSWORD: Final = 8
MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who uses the page."""

    name: str
    role: str = OPERATOR

    @property
    def may_act(self) -> bool:
        """Whether actions are allowed."""
        return self.role == OPERATOR


class Users:
    """Users with their passwords; thread-safe."""

    def __init__(self, known: Mapping[str, tuple[User, bytes, bytes]]) -> None:
        """Know users by their names, each with salt and hash of the password."""
        self._known = dict(known)
        # One at a time: many at once would need 16 MB each.
        self._lock = lock_of(self)
        self._nobody = (User("", VIEWER), secrets.token_bytes(SALT_BYTES), secrets.token_bytes(64))

    @classmethod
    def read(cls, path: Path) -> Users:
        """Return the users of a file.

        Raises:
            InvalidArgument: it cannot be read, has no user, or a line is none; the text has no password's hash.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"the users' file {path} cannot be read: {error}") from error
        known: dict[str, tuple[User, bytes, bytes]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                user, salt, digest = _parsed(line)
            except ValueError as error:
                raise InvalidArgument(
                    f"line {number} of the users' file {path} is no user ({error}); allowed are those that `web-user` writes"
                ) from error
            if user.name in known:
                raise InvalidArgument(f"line {number} of the users' file {path} has user {user.name!r} a second time")
            known[user.name] = user, salt, digest
        if not known:
            raise InvalidArgument(f"the users' file {path} has no user; `web-user NAME` writes one")
        return cls(known)

    def named(self, name: str) -> User | None:
        """Return a user by its name; None where there is none."""
        found = self._known.get(name)
        return None if found is None else found[0]

    def login(self, name: str, password: str) -> User | None:
        """Return the user whose name and password these are; None where there is none. It takes the same time for all."""
        user, salt, digest = self._known.get(name, self._nobody)
        with self._lock:
            same = hmac.compare_digest(_hashed(password[:MAX_PASSWORD], salt), digest)
        return user if same and user.name else None


def user_line(name: str, role: str, password: str) -> str:
    """Return the line of a user.

    Raises:
        InvalidArgument: the name, role or password is not allowed.
    """
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or ":" in name or name.startswith("#") or name != name.strip():
        raise InvalidArgument(
            f"user name {name!r:.120} is not allowed: 1 to {MAX_NAME} characters without ':', not beginning with '#'"
        )
    if role not in ROLES:
        raise InvalidArgument(f"role {role!r:.100} of user {name!r} is unknown; allowed are {' and '.join(ROLES)}")
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise InvalidArgument(f"the password has {len(password)} characters; allowed are {MIN_PASSWORD} to {MAX_PASSWORD}")
    salt = secrets.token_bytes(SALT_BYTES)
    return f"{name}:{role}:scrypt:{salt.hex()}:{_hashed(password, salt).hex()}"


def _parsed(line: str) -> tuple[User, bytes, bytes]:
    name, role, kind, salt, digest = line.split(":")
    if not name or role not in ROLES or kind != "scrypt":
        raise ValueError("its role or its hash is unknown")
    return User(name, role), bytes.fromhex(salt), bytes.fromhex(digest)


def _hashed(password: str, salt: bytes) -> bytes:
    text = password.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(text, salt=salt, n=COST, r=BLOCK, p=PARALLEL, maxmem=MAX_MEMORY)
