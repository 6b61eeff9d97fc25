"""Reads what a request asks for: names in its query, ids in its form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.requests import Request

#: Pages of a list: beyond it Redis' ranks end.
MAX_PAGE: Final = 1_000_000_000


def url(path: str, **parameters: object) -> str:
    """Return a path with parameters, those that are None or empty left out. Names may have bytes that are no UTF-8."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, errors='surrogateescape')}" if given else path


def parameter(request: Request, name: str) -> str:
    """Return a parameter of the query, '' without it."""
    query = request.scope["query_string"].decode("ascii", "surrogateescape")
    values: list[str] = parse_qs(query, keep_blank_values=True, errors="surrogateescape").get(name, [""])
    return values[0]


def required(request: Request, name: str) -> str:
    """Return a parameter of the query.

    Raises:
        HTTPException: it is missing.
    """
    value = parameter(request, name)
    if not value:
        raise HTTPException(400, f"The address lacks {name!r}.")
    return value


def page_number(request: Request) -> int:
    """Return the parameter `page`, 0 without it.

    Raises:
        HTTPException: it is no such number.
    """
    text = parameter(request, "page") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= MAX_PAGE):
        raise HTTPException(400, f"page={text:.50}: allowed are numbers from 0 to {MAX_PAGE:,}.")
    return int(text)


def field(request: Request, name: str) -> str:
    """Return a field of the form, '' without it."""
    values: list[str] = request.state.form.get(name, [""])
    return values[0].strip()


def fields(request: Request, name: str) -> list[str]:
    """Return all fields of that name, the ticked boxes for example."""
    values: list[str] = request.state.form.get(name, [])
    return values
