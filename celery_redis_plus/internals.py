"""Private names of kombu, Celery and billiard: how one is looked up, and what follows where a version does not have it.

Only `transport/compat.py` (kombu), `integration/compat.py` and `integration/worker_compat.py` (Celery, billiard) declare such
names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from celery_redis_plus.installation import DISTRIBUTION

logger = logging.getLogger(__name__)

#: Distributions whose versions decide which names exist.
BUILT_ON = ("celery", "kombu", "billiard")
#: Internals whose absence this process has reported: one warning each is enough.
_reported: set[Internal] = set()


@dataclass(frozen=True, slots=True)
class Internal:
    """One private name of a library.

    Attributes:
        where: the class or module that has it, as `package.module:Class`; an instance attribute is named by its class.
        name: the attribute.
        without: what does not work where the name is missing, as the end of the warning "off: ...". Empty: nothing works.
    """

    where: str
    name: str
    without: str = ""

    def of(self, owner: Any, default: Any = None) -> Any:
        """Return the attribute of `owner`; `default` where it is missing, after one warning.

        Raises:
            UnsupportedVersion: it is missing, and nothing works without it.
        """
        try:
            return getattr(owner, self.name)
        except AttributeError:
            self.report()
            return default

    def set(self, owner: Any, value: Any) -> None:
        """Replace the attribute of `owner`."""
        setattr(owner, self.name, value)

    def report(self) -> None:
        """Say that the name is missing: once, or by raising UnsupportedVersion where nothing works without it."""
        missing = f"{self.where} has no {self.name!r} ({installed()})"
        if not self.without:
            # Here, because the errors load redis-py, and this module is loaded with kombu.
            from celery_redis_plus.errors import UnsupportedVersion

            raise UnsupportedVersion(f"{missing}, which celery-redis-plus builds on; {supported()}")
        if self not in _reported:
            _reported.add(self)
            logger.warning("%s; %s. Off: %s", missing, supported(), self.without)


def installed() -> str:
    """Return the installed versions, such as `celery 5.7.0, kombu 5.7.0, billiard 4.3.2`."""
    return ", ".join(f"{name} {_version(name)}" for name in BUILT_ON)


def supported() -> str:
    """Return which versions this package is made for, by its own requirements."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    named = [text for text in requirements if text.startswith(BUILT_ON) and ";" not in text]
    return f"allowed: {', '.join(named)}" if named else "allowed: the versions that celery-redis-plus requires"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "of an unknown version"
