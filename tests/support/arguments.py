"""What is said once in a process of arguments that have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redis_plus.transport import arguments
from celery_redis_plus.transport.arguments import NO_EFFECT_ON_FANOUT

if TYPE_CHECKING:
    import pytest

__all__ = ["NO_EFFECT_ON_FANOUT", "forget_reports"]


def forget_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything said once more, whatever other tests of this process have heard."""
    monkeypatch.setattr(arguments, "_reported", set())
