"""The receipts of `spark forget`: what was asked for, what went, and that no file of an earlier version is left.

A receipt is begun before the tables change. It is finished when the files of earlier versions are removed, by the job itself or,
where that was killed, by the next one. One whose version never came to be is removed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redis_plus.spark.manifest import Manifest
    from celery_redis_plus.spark.storage import Storage

_BEGUN, _DONE = "begun", "done"


def begin(storage: Storage, identity: str, content: dict[str, Any]) -> None:
    """Write a receipt."""
    storage.write_json(_name(identity), {"id": identity, "state": _BEGUN, "begun_at": _now(), **content})


def finish(storage: Storage, identity: str) -> None:
    """Note that nothing of it is left."""
    if (receipt := read(storage, identity)) is not None:
        storage.write_json(_name(identity), receipt | {"state": _DONE, "finished_at": _now()})


def read(storage: Storage, identity: str) -> dict[str, Any] | None:
    """Return a receipt; None where there is none."""
    found: dict[str, Any] | None = storage.current(_name(identity))
    return found


def unfinished_receipts(storage: Storage, current: Manifest) -> list[str]:
    """Return the receipts of what the current version has removed, and whose files may still be there; remove those of none."""
    found = []
    for name in storage.names("receipts"):
        identity = name.rpartition("/")[2].removesuffix(".json")
        receipt = read(storage, identity)
        if receipt is None or receipt["state"] == _DONE:
            continue
        if identity in current.forgetting:
            found.append(identity)
        else:
            storage.remove([name])
    return found


def _name(identity: str) -> str:
    return f"receipts/{identity}.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
