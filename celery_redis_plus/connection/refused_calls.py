"""Names the command or script, and the keys, of a call that the server refused: WRONGTYPE, NOPERM and errors of Lua name neither.

Redis and Valkey say `WRONGTYPE Operation against a key holding the wrong kind of value` and `NOPERM No permissions to access one
of the keys used as arguments`. Which one of several keys it is, an operator sees with the command TYPE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from celery_redis_plus.connection.protocol import unpack
from celery_redis_plus.error_translation import DAMAGED, DENIED_IN_SCRIPT
from celery_redis_plus.scripts import name_of_sha

#: Keys that are named at most: as many as a queue has.
MOST_KEYS = 20


def describe_refusal(error: Exception, call: Sequence[Any] | bytes) -> str:
    """Return the command or script, and the keys, that `error` is about, as a part of a sentence; '' for other errors.

    Args:
        error: what the server answered.
        call: the command and its arguments, or the same packed.
    """
    if not (isinstance(error, ResponseError) and call and _is_about_call(error)):
        return ""
    arguments = unpack(call) if isinstance(call, bytes) else call
    command = _bytes(arguments[0]).decode()
    what = f"script {name_of_sha(_bytes(arguments[1]))}" if command == "EVALSHA" else f"command {command}"
    keys = [_text(key) for key in keys_of(arguments)] if _is_about_keys(error) else []
    if not keys:
        return what
    if len(keys) == 1:
        return f"{what}, key {keys[0]}"
    named = ", ".join(keys[:MOST_KEYS])
    return f"{what}, one of the keys {named}" + (f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else "")


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


def _is_about_call(error: ResponseError) -> bool:
    return _is_denied(error) or str(error).startswith("WRONGTYPE") or any(text in str(error) for text in DAMAGED)


def _is_denied(error: ResponseError) -> bool:
    return isinstance(error, NoPermissionError) or any(text in str(error) for text in DENIED_IN_SCRIPT)


def _is_about_keys(error: ResponseError) -> bool:
    return not _is_denied(error) or " key" in str(error)


def _bytes(argument: Any) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode("utf-8", "surrogateescape")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
