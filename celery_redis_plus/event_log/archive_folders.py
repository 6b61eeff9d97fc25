"""The folder that an archive has for each queue: `queue=NAME`, and in it a file that tells whose it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from celery_redis_plus.keys import decode_name, encode_name

#: A file system takes 255 bytes of a name. A longer one ends with a digest.
LONGEST_NAME = 200
#: The file that tells of the queue.
TOLD = "queue.json"


def folder_of(archive: Path, queue: str) -> Path:
    """Return the folder of a queue."""
    name = quote(encode_name(queue), safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}~{hashlib.sha256(encode_name(queue)).hexdigest()[:16]}"
    return archive / f"queue={name}"


def tell(folder: Path, queue: str) -> None:
    """Let a folder tell whose it is."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / TOLD).exists():
        temporary = folder / f"{TOLD}.tmp"
        temporary.write_text(json.dumps({"queue": queue}), encoding="utf-8")
        temporary.replace(folder / TOLD)


def queue_of(folder: Path) -> str:
    """Return whose a folder is; one of an older release tells by its name."""
    file = folder / TOLD
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    queue: str = told.get("queue") or decode_name(unquote_to_bytes(folder.name.removeprefix("queue=")))
    return queue
