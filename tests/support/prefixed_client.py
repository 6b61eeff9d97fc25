"""A client that writes a prefix before each key, so that a test which names keys finds them in a cluster, too."""

from __future__ import annotations

from typing import Any

import redis

from celery_redis_plus.testing.server import HOST

#: Commands without keys.
WITHOUT = frozenset(
    b"ACL AUTH CLIENT CLUSTER COMMAND CONFIG DBSIZE DEBUG DISCARD ECHO EXEC FLUSHALL FLUSHDB FUNCTION HELLO INFO LATENCY "
    b"LASTSAVE MONITOR MULTI PING PUBLISH REPLICAOF ROLE SAVE SCRIPT SELECT SHUTDOWN SLOWLOG TIME UNWATCH WAIT".split()
)
#: All arguments are keys.
ALL = frozenset(b"DEL EXISTS MGET RENAME RENAMENX SUNION TOUCH UNLINK WATCH".split())
#: The number of keys stands before them, at this place.
COUNTED = {b"EVAL": 2, b"EVALSHA": 2, b"ZUNION": 1, b"ZINTER": 1, b"BZMPOP": 2}
#: The second argument is the key.
SECOND = frozenset(b"MEMORY OBJECT XGROUP XINFO".split())


def _places(command: bytes, arguments: list[Any]) -> range | list[int]:
    """Return where the keys, or the pattern of keys, are among the words of a command."""
    if command in WITHOUT:
        return []
    if command in ALL:
        return range(1, len(arguments))
    if command in COUNTED:
        at = COUNTED[command]
        return range(at + 1, at + 1 + int(arguments[at]))
    if command == b"SCAN":
        return [place + 1 for place, word in enumerate(arguments) if word in (b"MATCH", "MATCH")]
    if command == b"XREAD":
        begin = next(place for place, word in enumerate(arguments) if word in (b"STREAMS", "STREAMS")) + 1
        return range(begin, begin + (len(arguments) - begin) // 2)
    return [2] if command in SECOND else [1]


def _prefixed(key: Any, prefix: bytes) -> bytes:
    """Return a key with the prefix; one that has it stays as it is."""
    text = key if isinstance(key, bytes) else str(key).encode()
    return text if text.startswith(prefix) else prefix + text


class _Packer:
    """Packs commands with their keys prefixed."""

    def __init__(self, inner: Any, prefix: bytes) -> None:
        self._inner, self._prefix = inner, prefix

    def pack(self, *arguments: Any) -> Any:
        # redis-py writes commands of two words as one: "CLIENT KILL".
        words = [*str(arguments[0]).split(), *arguments[1:]] if isinstance(arguments[0], str) else list(arguments)
        name = words[0]
        for place in _places(name.upper().encode() if isinstance(name, str) else name.upper(), words):
            words[place] = _prefixed(words[place], self._prefix)
        return self._inner.pack(*words)


class _Connection(redis.Connection):
    """A connection whose commands are packed so."""

    def __init__(self, *, key_prefix: bytes, **options: Any) -> None:
        # mypy excludes calls of redis-py by their names, and knows none behind `super()`.
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._command_packer: Any = _Packer(self._command_packer, key_prefix)


class _Client(redis.Redis):
    """A client that finds keys without the prefix, unless it was asked for some with it."""

    prefix = b""

    def keys(self, pattern: Any = "*", **options: Any) -> Any:
        return self._without(pattern, super().keys(pattern, **options))

    def scan(
        self, cursor: int = 0, match: Any = None, count: int | None = None, _type: str | None = None, **options: Any
    ) -> tuple[int, list[bytes | str]]:
        cursor, keys = super().scan(cursor, match, count, _type, **options)
        return cursor, self._without(match or "", keys)

    def _without(self, pattern: Any, keys: list[Any]) -> list[Any]:
        asked = pattern if isinstance(pattern, bytes) else pattern.encode()
        if asked.startswith(self.prefix):
            return keys
        return [key.removeprefix(self.prefix if isinstance(key, bytes) else self.prefix.decode()) for key in keys]


def prefixed_client(port: int, prefix: str, **options: Any) -> redis.Redis:
    """Return a client of the server on a port; the caller closes it."""
    single = {name: options.pop(name) for name in ("single_connection_client",) if name in options}
    pool = redis.ConnectionPool(connection_class=_Connection, host=HOST, port=port, key_prefix=prefix.encode(), **options)
    client = _Client(connection_pool=pool, **single)
    client.prefix = prefix.encode()
    client.auto_close_connection_pool = True
    return client
