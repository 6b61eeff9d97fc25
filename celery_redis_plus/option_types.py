"""The types that an option can have: how a given value is checked and coerced, and what is allowed, in words.

A type is a small frozen object with `parse(value)`, which returns the value to keep or raises `ValueError` (without a text:
`options.py` composes the message from `allowed`). Values from a URL's query are text, so numbers and booleans are coerced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class OptionType(Protocol):
    """What an option's type offers."""

    @property
    def name(self) -> str:
        """The type's name in the documentation, such as `float`."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words that complete "allowed: ..."."""

    def parse(self, value: object) -> Any:
        """Return the value to keep. Raises ValueError when `value` is not allowed."""


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `minimum` to `maximum`, both included; whole when `integer`. Booleans are no numbers."""

    minimum: float
    maximum: float | None = None
    integer: bool = False

    @property
    def name(self) -> str:
        return "int" if self.integer else "float"

    @property
    def allowed(self) -> str:
        noun = "a whole number" if self.integer else "a number"
        if self.maximum is None:
            return f"{noun} >= {self.minimum:g}"
        return f"{noun} from {self.minimum:g} to {self.maximum:g}"

    def parse(self, value: object) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or number < self.minimum:
            raise ValueError
        if self.maximum is not None and number > self.maximum:
            raise ValueError
        if not self.integer:
            # Keep 300 as 300: it is printed, compared and multiplied as it was written.
            return value if isinstance(value, int) else number
        if not number.is_integer():
            raise ValueError
        return int(number)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false; as text also 1/0, yes/no, on/off."""

    name: str = "bool"
    allowed: str = "True or False"

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower() if isinstance(value, int | str) else ""
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise ValueError


@dataclass(frozen=True, slots=True)
class Text:
    """Text, the whole of which matches `pattern`."""

    allowed: str = "text"
    pattern: str = r"(?s:.*)"
    name: str = "str"

    def parse(self, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        raise ValueError


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    name: str = "str"

    @property
    def allowed(self) -> str:
        return " or ".join(repr(word) for word in self.words)

    def parse(self, value: object) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        raise ValueError


@dataclass(frozen=True, slots=True)
class Anything:
    """Any object; what it must be is checked where it is used."""

    name: str
    allowed: str

    def parse(self, value: object) -> object:
        return value


@dataclass(frozen=True, slots=True)
class IntMapping:
    """A mapping of numbers to numbers, such as socket options; numbers may be written as text."""

    name: str = "dict"
    allowed: str = "a mapping of numbers to numbers"

    def parse(self, value: object) -> dict[int, int]:
        if not isinstance(value, Mapping):
            raise ValueError
        whole = Number(minimum=0, integer=True)
        return {int(whole.parse(key)): int(whole.parse(item)) for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class OneOf:
    """The first of several types that takes the value."""

    types: tuple[OptionType, ...]

    @property
    def name(self) -> str:
        return " or ".join(kind.name for kind in self.types)

    @property
    def allowed(self) -> str:
        return ", or ".join(kind.allowed for kind in self.types)

    def parse(self, value: object) -> Any:
        for kind in self.types:
            try:
                return kind.parse(value)
            except ValueError:
                continue
        raise ValueError
