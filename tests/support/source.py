"""The package's own source, parsed once for all tests of a process that look at it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import celery_redis_plus

PACKAGE = Path(celery_redis_plus.__file__).parent


@cache
def modules() -> dict[str, ast.Module]:
    """Return the modules by their paths inside the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
