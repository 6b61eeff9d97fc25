"""The types that an option can have: how a value is checked and coerced, and what is allowed, in words.

Values from a URL's query are text, so numbers and booleans are understood as text too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from celery_redis_plus.errors import OptionError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class OptionType(NamedTuple):
    """The type of an option.

    Attributes:
        name: for the documentation, such as `float`. allowed: what is allowed, in words that complete
        "allowed: ...". parse: returns the value to keep, or raises ValueError or TypeError. The error's own
        text is not shown.
    """

    name: str
    allowed: str
    parse: Callable[[object], Any]
    hashable: bool = True


def number(minimum: float, maximum: float | None = None, *, integer: bool = False) -> OptionType:
    """A finite number from `minimum` to `maximum`, both included; booleans are none."""

    def parse(value: object) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError
        parsed = float(value)
        if not math.isfinite(parsed) or parsed < minimum or (maximum is not None and parsed > maximum):
            raise ValueError
        if integer and not parsed.is_integer():
            raise ValueError
        # 300 stays 300, and "300" becomes it: it is printed, compared and multiplied as it was written.
        whole = integer or isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal())
        return int(parsed) if whole else parsed

    noun = "a whole number" if integer else "a number"
    limits = f">= {minimum:.12g}" if maximum is None else f"from {minimum:.12g} to {maximum:.12g}"
    return OptionType("int" if integer else "float", f"{noun} {limits}", parse)


def whole_number(minimum: float, maximum: float | None = None) -> OptionType:
    """A whole number within these bounds."""
    return number(minimum, maximum, integer=True)


def flag() -> OptionType:
    """True or false; as text also 1/0, yes/no, on/off."""

    def parse(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, int | str):
            raise TypeError
        text = str(value).strip().lower()
        if text not in _TRUE | _FALSE:
            raise ValueError
        return text in _TRUE

    return OptionType("bool", "True or False", parse)


def text(allowed: str = "text", pattern: str = r"(?s:.*)") -> OptionType:
    """Text, the whole of which matches `pattern`."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise TypeError
        if not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return OptionType("str", allowed, parse)


def choice(*words: str) -> OptionType:
    """One of a few words."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError
        return value

    return OptionType("str", " or ".join(repr(word) for word in words), parse)


def names(*words: str) -> OptionType:
    """Some of a few words: a list, or text with commas between them."""

    def parse(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [word.strip() for word in value.split(",") if word.strip()]
        if not isinstance(value, list | tuple | set | frozenset):
            raise TypeError
        if not value or not set(value) <= set(words):
            raise ValueError
        return tuple(word for word in words if word in value)

    return OptionType("list", f"a list of {', '.join(map(repr, words))}", parse)


def number_mapping() -> OptionType:
    """A mapping of whole numbers to whole numbers."""
    whole = whole_number(0)

    def parse(value: object) -> dict[int, int]:
        if not isinstance(value, Mapping):
            raise TypeError
        return {whole.parse(key): whole.parse(item) for key, item in value.items()}

    return OptionType("dict", "a mapping of whole numbers to whole numbers", parse, hashable=False)


def instance(name: str, allowed: str, *classes: type) -> OptionType:
    """An instance of one of `classes`; of anything when there are none."""

    def parse(value: object) -> object:
        if classes and not isinstance(value, classes):
            raise TypeError
        return value

    return OptionType(name, allowed, parse, hashable=False)


def nothing(instead: str) -> OptionType:
    """No value at all: the option exists to say `instead`."""

    def parse(_value: object) -> None:
        raise ValueError

    return OptionType("None", instead, parse)


def one_of(*types: OptionType) -> OptionType:
    """The first of several types that takes the value."""

    def parse(value: object) -> Any:
        for kind in types:
            try:
                return kind.parse(value)
            except (TypeError, ValueError):
                continue
        raise ValueError

    name = " or ".join(kind.name for kind in types)
    allowed = ", or ".join(kind.allowed for kind in types)
    return OptionType(name, allowed, parse, hashable=all(kind.hashable for kind in types))


def option(kind: OptionType, default: Any, *, unit: str = "", none: str = "", secret: bool = False) -> Any:
    """Declare an option; the text below the declaration says what it does.

    `none` says what None means; without it, a given None means "not set". A `secret` is not printed.
    """
    metadata = {
        "kind": kind,
        "type": f"{kind.name} or None" if none else kind.name,
        "allowed": f"{kind.allowed}, or None ({none})" if none else kind.allowed,
        "unit": unit,
        "none": bool(none),
    }
    return field(default=default, metadata=metadata, repr=not secret, hash=kind.hashable)


def checked(declared: Any, value: Any) -> Any:
    """Return what an option declared with `option` keeps of `value`; the default for a None that has no meaning.

    Raises:
        OptionError: the value is not allowed.
    """
    if value is None:
        return None if declared.metadata["none"] else declared.default
    try:
        return declared.metadata["kind"].parse(value)
    except (TypeError, ValueError, OverflowError):
        unit = f" ({declared.metadata['unit']})" if declared.metadata["unit"] else ""
        raise OptionError(
            f"transport option {declared.name}={value!r} is not allowed; allowed: {declared.metadata['allowed']}{unit}"
        ) from None
