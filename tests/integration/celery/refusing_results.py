"""A result backend that stores nothing, as those of databases that bound a document."""

from __future__ import annotations

from typing import NoReturn

from celery.backends.base import KeyValueStoreBackend


class RefusingResults(KeyValueStoreBackend):
    """Finds nothing, and refuses all."""

    def get(self, key: bytes) -> None:
        """Return that there is none."""

    def set(self, key: bytes, value: bytes) -> NoReturn:
        raise ValueError("a document is too large")

    def delete(self, key: bytes) -> None:
        """Do nothing."""
