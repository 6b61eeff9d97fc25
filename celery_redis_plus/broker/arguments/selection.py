"""Selects messages by their headers: those of a task, or with a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any


def is_of_task(headers: Mapping[str, Any], task: str | None) -> bool:
    """Return whether a message with these headers is of a task, a name or a pattern; None is any message."""
    return task is None or fnmatchcase(str(headers.get("task") or ""), task)


def has_text(headers: Mapping[str, Any], text: str | None) -> bool:
    """Return whether a text is in the headers: in the arguments of a task, in an id; None is in all."""
    return text is None or text in json.dumps(headers, default=str, ensure_ascii=False)
