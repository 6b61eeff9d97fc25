"""The receipts of `spark forget`: what was asked for, what went, and that no file of an earlier version is left.

    ROOT/receipts/ID.begun.json    before the tables change
    ROOT/receipts/ID.json          when the files of earlier versions are removed

The job itself finishes a receipt or, where it was killed, the next one. One whose version never came to be is removed. No object
is replaced: in Azure's store it would be empty meanwhile, and stay so where its writer is killed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redis_plus.spark.manifest import Manifest
    from celery_redis_plus.spark.storage import Storage

_BEGUN = ".begun.json"


def begin(storage: Storage, identity: str, content: dict[str, Any]) -> None:
    """Write a receipt."""
    storage.write_json(_begun(identity), {"id": identity, "state": "begun", "begun_at": _now(), **content})


def finish(storage: Storage, identity: str) -> None:
    """Note that nothing of it is left."""
    if receipt := storage.current(_begun(identity)):
        storage.write_json(f"receipts/{identity}.json", receipt | {"state": "done", "finished_at": _now()})
        storage.remove([_begun(identity)])


def unfinished_receipts(storage: Storage, current: Manifest) -> list[str]:
    """Return the receipts of what the current version has removed, and whose files may still be there; remove those of none."""
    begun = [name.rpartition("/")[2].removesuffix(_BEGUN) for name in storage.names("receipts") if name.endswith(_BEGUN)]
    for identity in set(begun).difference(current.forgetting):
        storage.remove([_begun(identity)])
    return [identity for identity in begun if identity in current.forgetting]


def unfinished_messages(storage: Storage, condition: str) -> list[dict[str, str]]:
    """Return queue and id of the messages that were unfinished when the same condition (its digest) chose them."""
    found = [storage.current(name) for name in storage.names("receipts") if name.endswith(".json")]
    same = [receipt for receipt in found if receipt and receipt["condition_sha256"] == condition]
    return [row for receipt in same for row in receipt.get("unfinished_messages", ())]


def _begun(identity: str) -> str:
    return f"receipts/{identity}{_BEGUN}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
