"""The app of `tests.integration.celery.app`, beside a Celery that calls some of its internals by other names.

The variable names the constants of `compat` and `worker_compat`, with commas; empty: all of which the absence is allowed.
"""

from __future__ import annotations

import os

from celery_redis_plus.integration import compat, worker_compat
from celery_redis_plus.internals import Internal

VARIABLE = "CRP_TEST_RENAMED_INTERNALS"


def internals() -> dict[str, Internal]:
    """Return what the two modules declare, by constant."""
    return {name: value for name, value in (vars(compat) | vars(worker_compat)).items() if isinstance(value, Internal)}


def rename(*constants: str) -> None:
    """Have them look for names that do not exist; Celery itself goes on with its own."""
    for constant in constants or [name for name, internal in internals().items() if internal.without]:
        internal = internals()[constant]
        object.__setattr__(internal, "name", f"renamed_{internal.name}")


if VARIABLE in os.environ:
    rename(*filter(None, os.environ[VARIABLE].split(",")))

from tests.integration.celery.app import app  # noqa: E402, F401 - after the names are gone
