"""Holds a history against every promise."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from tests.support.judge.promises import (
    at_least_once,
    broadcasts,
    dead_letters,
    deduplication,
    delays,
    lateness,
    limits,
    one_holder,
    order,
    priorities,
    repeats,
    routing,
    single_active,
)
from tests.support.judge.rules import Rules
from tests.support.judge.verdict import Violation, report

if TYPE_CHECKING:
    from tests.support.judge.records import History

PROMISES: tuple[ModuleType, ...] = (
    at_least_once,
    routing,
    repeats,
    one_holder,
    order,
    priorities,
    limits,
    single_active,
    delays,
    lateness,
    deduplication,
    broadcasts,
    dead_letters,
)


def judge(history: History, rules: Rules | None = None) -> list[Violation]:
    """Return what breaks a promise, promise by promise."""
    chosen = rules or Rules()
    return [found for promise in PROMISES for found in promise.check(history, chosen)]


def assert_kept(history: History, rules: Rules | None = None) -> None:
    """Fail with a report of the promises that were broken."""
    found = judge(history, rules)
    assert not found, report(found)
