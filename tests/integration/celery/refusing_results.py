"""A result backend that stores nothing, as those of databases that bound a document."""

from __future__ import annotations

from typing import NoReturn

from celery.backends.base import KeyValueStoreBackend


class Timeout(ValueError):  # noqa: N818 - as libraries for HTTP name theirs
    """Has the name of what gevent's pool raises at a hard time limit."""


class RefusingResults(KeyValueStoreBackend):
    """Finds nothing, and refuses all."""

    def get(self, key: bytes) -> None:
        """Return that there is none."""

    def set(self, key: bytes, value: bytes) -> NoReturn:
        raise Timeout("a document is too large")

    def delete(self, key: bytes) -> None:
        """Do nothing."""
