"""The exception with which the work on a message ended, as its hash, its dead letter and its events keep it: bounded."""

from __future__ import annotations

from dataclasses import dataclass

from celery_redis_plus.events import pack_text, unpack_text

#: Bytes of class name and message at most.
TEXT_BYTES = 500
_MORE = "…"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception."""

    #: `ValueError: the message`.
    text: str
    #: The last lines of its traceback, where the app keeps them (option `error_traceback_bytes`).
    traceback: str = ""
    #: The release of the application whose worker met it (option `release`).
    release: str = ""

    @property
    def kind(self) -> str:
        """The class of the exception."""
        return self.text.partition(":")[0]

    def packed(self) -> str:
        """Return it as the field `error` of a message's hash holds it."""
        release = f"\t{pack_text(self.release)}" if self.release else ""
        return f"{pack_text(self.text)}\t{pack_text(self.traceback)}{release}"


def failure_of(name: str, message: str, traceback: str = "", *, traceback_bytes: int = 0, release: str = "") -> Failure:
    """Return an exception within its bounds: the beginning of its message, the end of its traceback.

    Args:
        name: the class.
        message: the text; may be empty.
        traceback: the whole traceback.
        traceback_bytes: bytes of it that are kept.
        release: of the application.
    """
    text = f"{name}: {message}" if message else name
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > TEXT_BYTES:
        text = raw[: TEXT_BYTES - 3].decode("utf-8", "ignore") + _MORE
    kept = traceback.rstrip().encode("utf-8", "surrogateescape")[-traceback_bytes:] if traceback_bytes else b""
    if traceback_bytes and len(kept) == traceback_bytes:
        # From the first whole line on.
        kept = kept.partition(b"\n")[2] or kept
    return Failure(text, kept.decode("utf-8", "ignore"), release)


def text_of(value: object) -> str:
    """Return the text of an exception, or of another object of a user's: the code that makes it may raise itself."""
    try:
        # A surrogate alone cannot be stored.
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - the text is a user's code
        return f"<{type(value).__name__} whose text raises {type(error).__name__}>"


def failure_by(error: BaseException) -> Failure:
    """Return an exception without its traceback."""
    return failure_of(type(error).__name__, text_of(error))


def read_failure(packed: str) -> Failure | None:
    """Return the exception in the field `error`; None for an empty one."""
    text, _, rest = packed.partition("\t")
    traceback, _, release = rest.partition("\t")
    return Failure(unpack_text(text), unpack_text(traceback), unpack_text(release)) if text else None
