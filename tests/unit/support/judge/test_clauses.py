"""Each way in which a promise can be broken has a history that breaks it so."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.support.judge.judging import PROMISES
from tests.support.judge.rules import Rules
from tests.unit.support.judge import test_routes
from tests.unit.support.judge.test_promises import BROKEN, told
from tests.unit.support.judge.test_strict_judge import STRICT, STRICTLY_BROKEN


def clauses(promise):
    """Return the lines of a promise at which it names a violation."""
    tree = ast.parse(Path(promise.__file__).read_text())
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {(promise.NAME, call.lineno) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "violation"}


def test_each_clause_of_each_promise_has_a_history_that_breaks_it(monkeypatch):
    named = set()
    for promise in PROMISES:

        def violation(name, *args, found=promise.violation):
            named.add((name, sys._getframe(1).f_lineno))  # noqa: SLF001 - the clause that calls
            return found(name, *args)

        monkeypatch.setattr(promise, "violation", violation)
    for promise, lines in (*BROKEN.values(), *test_routes.BROKEN.values()):
        list(promise.check(told(*lines), Rules()))
    for promise, lines in STRICTLY_BROKEN.values():
        list(promise.check(told(*lines), STRICT))
    assert named == set().union(*map(clauses, PROMISES))
