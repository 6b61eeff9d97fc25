"""The folder that an archive has for each queue: `queue=NAME`, and in it a file that says whose it is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.keys import decode_name, encode_name

if TYPE_CHECKING:
    from celery_redis_plus.event_log.event_logs import EventLogs

#: A file system takes 255 bytes of a name. A longer one ends with a digest.
LONGEST_NAME = 200
#: The file that says whose a folder is. Those of an older release have none.
DESCRIPTION = "queue.json"


def folder_of(archive: Path, queue: str) -> Path:
    """Return the folder of a queue."""
    name = quote(encode_name(queue), safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}~{hashlib.sha256(encode_name(queue)).hexdigest()[:16]}"
    return archive / f"queue={name}"


def describe(folder: Path, log: EventLogs, queue: str) -> None:
    """Write whose the folder of a queue is, unless it says so. Raises as `LogServer.mark`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / DESCRIPTION).exists():
        mark = (log.of(queue)[0].mark() or b"").decode("utf-8", "replace")
        with appearing(folder / DESCRIPTION) as file:
            file.write(json.dumps({"queue": queue, "shard": log.shard_of(queue), "mark": mark}).encode())


def described(folder: Path) -> tuple[str, int, str]:
    """Return whose a folder is: queue, shard and mark.

    Raises:
        InvalidArgument: its description is damaged.
    """
    file = folder / DESCRIPTION
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} is damaged: `events archive` writes it anew when it is deleted")
    queue = content.get("queue") or decode_name(unquote_to_bytes(folder.name.removeprefix("queue=")))
    return queue, content.get("shard", 0), content.get("mark", "")


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that appears whole, and lasts over a crash of the machine."""
    with path.with_suffix(".tmp").open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".tmp").replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
