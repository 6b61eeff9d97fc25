"""Models that a message can be compared with: pydantic's, msgspec's, and dataclasses. None of these packages is required."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

#: Raises ValueError or TypeError where a value does not fit.
Reader = Callable[[Any], None]


def reader_of(model: Any) -> Reader | None:
    """Return what reads a value as `model`; None where `model` is no model."""
    if not isinstance(model, type):
        return None
    if hasattr(model, "model_validate"):
        return _pydantic(model)
    if hasattr(model, "__struct_fields__"):
        return _msgspec(model)
    return _dataclass(model) if dataclasses.is_dataclass(model) else None


def _pydantic(model: Any) -> Reader:
    def read(value: Any) -> None:
        # A ValidationError is a ValueError.
        model.model_validate(value)

    return read


def _msgspec(model: Any) -> Reader:
    def read(value: Any) -> None:
        import msgspec

        try:
            msgspec.convert(value, type=model)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error

    return read


def _dataclass(model: Any) -> Reader:
    """Compare fields by name, and their values with annotations that are plain classes; `__post_init__` may check more."""
    hints = typing.get_type_hints(model)
    fields = [field for field in dataclasses.fields(model) if field.init]

    def read(value: Any) -> None:
        if isinstance(value, model):
            return
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a mapping of its fields, got {type(value).__name__}")
        for field in fields:
            wanted = hints.get(field.name)
            # JSON has no int for 1.0, and takes an int where a float is meant.
            wanted = (int, float) if wanted is float else wanted
            if field.name in value and isinstance(wanted, type | tuple) and not isinstance(value[field.name], wanted):
                expected = getattr(hints[field.name], "__name__", hints[field.name])
                raise TypeError(f"{field.name} is {value[field.name]!r:.60}; expected {expected}")
        model(**value)

    return read
