"""What `--root` names: a folder, or a URL of an object store."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from celery_redis_plus.errors import InvalidArgument
from celery_redis_plus.spark.folder import TablesFolder
from celery_redis_plus.spark.object_store import ObjectStore
from celery_redis_plus.spark.storage import Storage

#: Why a URL is refused where Java would read or write it, and what does without.
NO_JAVA_WRITER = "Spark's Java part writes to a URL only with hadoop-aws or its kin, which PySpark lacks; use --engine arrow"
NO_JAVA_READER = "Spark's Java part reads a URL only with hadoop-aws or its kin, which PySpark lacks; `files` is for others"
#: How a URL begins; `Path` makes one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def is_url(root: str | Path) -> bool:
    """Return whether a root is a URL, also one of which a path has left one slash."""
    return _SCHEME.match(str(root)) is not None


def opened(root: str | Path | Storage) -> Storage:
    """Return the tables' place that `root` names. `file://` is a folder.

    Raises:
        InvalidArgument: it is a URL that holds a secret, or of another kind.
        ObjectStoreFailed: the store cannot be reached.
    """
    if isinstance(root, Storage):
        return root
    if not is_url(root):
        return TablesFolder(Path(root))
    parts = urlsplit(str(root))
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return TablesFolder(Path(unquote(parts.path)))
    return ObjectStore(str(root))


def folder_of(root: str | Path | Storage, what: str) -> Path:
    """Return the folder that `root` names, for what works in one only; `what` tells it.

    Raises:
        InvalidArgument: it is a URL.
    """
    storage = opened(root)
    if not isinstance(storage, TablesFolder):
        raise InvalidArgument(f"root {storage.where!r} is not allowed: {what}")
    return storage.root


@cache
def of_task(root: str) -> Storage:
    """Return the tables' place, opened once in a process: for tasks, which get its name."""
    return opened(root)
