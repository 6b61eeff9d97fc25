"""Names the command or script, and the keys, of a call that the server refused: its errors WRONGTYPE and NOPERM name neither.

Redis and Valkey say `WRONGTYPE Operation against a key holding the wrong kind of value` and `NOPERM No permissions to access one
of the keys used as arguments`. A script of ours has up to 15 keys, so each is asked for its TYPE, over a connection of its own:
the connection of the call may have replies outstanding. All of this happens after a refusal; other calls do not pass here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus.connection.protocol import pack_command, send, unpack
from celery_redis_plus.error_translation import DENIED_IN_SCRIPT
from celery_redis_plus.keys import decode_name
from celery_redis_plus.scripts import name_of_sha

if TYPE_CHECKING:
    from celery_redis_plus.connection.connector import Connector

#: Seconds that the server may take for all the types.
TYPES_TIMEOUT_S = 2.0
#: Seconds for which an answer stands: a publisher that fails 1,000 times a second must not connect as often.
TYPES_KEPT_S = 1.0


class RefusedKeys:
    """Finds the keys on account of which the server refuses the calls of one connection."""

    def __init__(self, connector: Connector) -> None:
        """Ask the server of `connector`."""
        self._connector = connector
        self._last: tuple[Any, float, str] = (None, 0.0, "")

    def describe(self, error: Exception, call: Sequence[Any] | bytes) -> str:
        """Return the command or script, and the keys, that `error` is about, as a part of a sentence; '' for other errors.

        Args:
            error: what the server answered.
            call: the command and its arguments, or the same packed.
        """
        if not (isinstance(error, ResponseError) and call and _is_about_call(error)):
            return ""
        arguments = unpack(call) if isinstance(call, bytes) else call
        command = _bytes(arguments[0]).decode()
        parts = [f"script {name_of_sha(_bytes(arguments[1]))}" if command == "EVALSHA" else f"command {command}"]
        if _is_about_keys(error):
            parts.append(self._keys_of(error, tuple(keys_of(arguments))))
        return ", ".join(part for part in parts if part)

    def _keys_of(self, error: ResponseError, keys: tuple[bytes, ...]) -> str:
        about = (keys, _is_denied(error))
        last, at, text = self._last
        if last != about or time.monotonic() - at > TYPES_KEPT_S:
            text = self._find(error, keys)
            self._last = (about, time.monotonic(), text)
        return text

    def _find(self, error: ResponseError, keys: tuple[bytes, ...]) -> str:
        types: list[str | None] = []
        # The description is a help; where it fails, the error itself says what happened.
        with suppress(Exception):
            types = self._types(keys)
        found = zip(keys, types, strict=False)
        if _is_denied(error):
            named = [_text(key) for key, kind in found if kind is None]
        else:
            wrong = [(key, kind) for key, kind in found if kind and kind != "none" and kind != _type_of(key)]
            named = [f"{_text(key)} (a {kind}{_wanted(key)})" for key, kind in wrong]
        if named or len(keys) == 1:
            return f"key {', '.join(named or map(_text, keys))}"
        return f"one of the keys {', '.join(map(_text, keys))}" if keys else ""

    def _types(self, keys: Sequence[bytes]) -> list[str | None]:
        """Return the keys' types, `none` for a key that does not exist, None for one that this user may not see."""
        connection = self._connector.open("refused", timeout=TYPES_TIMEOUT_S)
        try:
            send(connection, b"".join(pack_command((b"TYPE", key)) for key in keys))
            return [_type(connection) for _ in keys]
        finally:
            connection.disconnect()


def keys_of(arguments: Sequence[Any]) -> list[bytes]:
    """Return the keys among a command's arguments. Only for the commands that this package sends."""
    command = _bytes(arguments[0]).upper()
    if command in {b"EVALSHA", b"EVAL", b"BZMPOP"}:
        number = int(arguments[2])
        return [_bytes(key) for key in arguments[3 : 3 + number]]
    words = [_bytes(argument) for argument in arguments]
    if b"STREAMS" in words:
        first = words.index(b"STREAMS") + 1
        return words[first : first + (len(words) - first) // 2]
    if command in {b"UNLINK", b"DEL", b"EXISTS"}:
        return words[1:]
    return words[2:3] if command == b"XINFO" else words[1:2]


def _type(connection: Any) -> str | None:
    try:
        return str(connection.read_response(disable_decoding=True).decode())
    except NoPermissionError as error:
        if "'type'" in str(error):
            raise
        return None


def _is_about_call(error: ResponseError) -> bool:
    return _is_denied(error) or str(error).startswith("WRONGTYPE")


def _is_denied(error: ResponseError) -> bool:
    return isinstance(error, NoPermissionError) or any(text in str(error) for text in DENIED_IN_SCRIPT)


def _is_about_keys(error: ResponseError) -> bool:
    return not _is_denied(error) or " key" in str(error)


def _wanted(key: bytes) -> str:
    wanted = _type_of(key)
    return f", not a {wanted}" if wanted else ""


def _bytes(argument: Any) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode("utf-8", "surrogateescape")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


@cache
def _types() -> dict[str, str]:
    """Return the type of each kind of key, as the command TYPE names it; of two keys of a kind the first one described counts."""
    # Not at the top: after a refusal only.
    from celery_redis_plus.key_descriptions import DESCRIPTIONS

    return {one.kind: one.type for one in reversed(DESCRIPTIONS)}


def _type_of(key: bytes) -> str | None:
    """Return the type that `key`, under whatever prefix, has to have on the server; None where that is not known."""
    kind, _, rest = decode_name(key).partition(":{")
    if kind == "consumer" and rest.endswith(":probe"):
        return "zset"
    # A prefix may end in a letter: of all kinds that the text may end with, the longest.
    known = max((known for known in _types() if kind.endswith(known)), key=len, default=None)
    return None if known is None else _types()[known]
