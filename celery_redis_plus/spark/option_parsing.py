"""Parses the options of source and sink: names in Spark's style, values, and the URL, which holds no secret."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from celery_redis_plus.errors import OptionError

if TYPE_CHECKING:
    from celery_redis_plus.option_types import OptionType

T = TypeVar("T")

#: Options of `writeStream` itself, which Spark passes to the sink too.
_SPARKS_OWN = frozenset({"checkpointlocation"})


def option(kind: OptionType, default: Any, doc: str, *, unit: str = "") -> Any:
    """Declare an option, as a field of a dataclass that `parse_options` makes."""
    return field(default=default, metadata={"kind": kind, "doc": doc, "unit": unit})


def parse_options(kind: type[T], given: Mapping[str, str], what: str) -> T:
    """Return `kind` made of the options that a query was given; Spark hands their names over in any case.

    Raises:
        OptionError: one is unknown or not allowed, or there is not exactly one of `url` and `urlEnv`, without a password.
    """
    declared: Any = kind
    names = {public_name(entry.name).lower(): entry for entry in fields(declared)}
    values = {}
    for name, value in given.items():
        if name.lower() in _SPARKS_OWN:
            continue
        entry = names.get(name.lower())
        if entry is None:
            raise OptionError(f"unknown option {name!r} of {what}{_nearest(name, [public_name(f.name) for f in names.values()])}")
        allowed = entry.metadata["kind"]
        try:
            values[entry.name] = allowed.parse(value)
        except (ValueError, TypeError, AttributeError):
            raise OptionError(f"option {public_name(entry.name)}: {value!r} is not allowed; allowed: {allowed.allowed}") from None
    options = kind(**values)
    _check_url(values.get("url", ""), values.get("url_env", ""))
    return options


def _check_url(url: str, url_env: str) -> None:
    if bool(url) == bool(url_env):
        raise OptionError("give either url or urlEnv (the name of an environment variable that holds the URL)")
    if has_password(url):
        raise OptionError(
            "option url holds a password, which Spark may show in plans, logs and checkpoints; put the URL into an "
            "environment variable of the driver and the executors, and give its name as urlEnv"
        )


def has_password(url: str) -> bool:
    """Return whether a URL holds a password; one that cannot be parsed is refused where it is used, without being printed."""
    try:
        parts = urlsplit(url)
        return bool(parts.password) or any("password" in name.lower() for name, _ in parse_qsl(parts.query))
    except ValueError:
        return False


def resolve_url(url: str, url_env: str) -> str:
    """Return the URL, in the driver or in an executor.

    Raises:
        OptionError: the environment variable is not set in this process.
    """
    found = url or os.environ.get(url_env)
    if not found:
        raise OptionError(
            f"option urlEnv: the environment variable {url_env!r} is not set in this process; "
            f"on a cluster set spark.executorEnv.{url_env} too"
        )
    return found


def options_table(kind: type[Any]) -> list[tuple[str, str, str, str, str]]:
    """Return (name, allowed, default, unit, doc) of each option, for the documentation."""
    return [
        (
            public_name(f.name),
            f.metadata["kind"].allowed,
            "" if f.default in {None, ""} else str(f.default),
            f.metadata["unit"],
            f.metadata["doc"],
        )
        for f in fields(kind)
    ]


def public_name(name: str) -> str:
    """Return an option's name as Spark's users write it: `starting_offsets` is `startingOffsets`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
